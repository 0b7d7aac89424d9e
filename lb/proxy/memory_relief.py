"""Room for clients whose requests are refused because others hold nearly all memory.

`MemoryBudget.make_room_for` says who gives way. It looks at every holder, so it runs only after a
refusal, in steps between the work of others, and not at once again where nobody had to give way.

Many clients, or connections of one, that hold about as much as each other could have all others
refused for ever: together they never reach the ceiling. So once memory has been short for a while,
also those give way whose only request holds far more than a refused one, and later whoever holds
most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from ipaddress import IPv6Network
from typing import Final

from lb.kserve.merge.steps import Steps
from lb.net.iteration import IterationBudget
from lb.net.timers import Timer, TimerWheel
from lb.wire.memory_budget import MemoryBudget, Payer, Room, Seat, seat_of

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
"""How soon holders are counted again. Twelve thousand take some 25 ms, a tenth of that."""
_LOOK_S: Final = 5.0
"""How long memory may be short without a break before nobody's largest request is spared: as long
as a batch waits for clients that read."""
_LOOKS: Final = 6
"""Looks at one shortage, at the last of which the largest holders give way, whoever they are: after
30 s, as for the progress of HTTP/1.1 bodies."""
_STEP_UNITS: Final = 1000
"""A step takes about a millisecond: units of `IterationBudget`."""


class MemoryRelief:
    """Makes room in the memory budget after refusals."""

    __slots__ = (
        "_before_step", "_is_resting", "_iteration", "_long_shortage", "_memory_budget", "_refused",
        "_short_timer", "_timers", "_work",
    )  # fmt: skip

    def __init__(
        self,
        memory_budget: MemoryBudget,
        iteration: IterationBudget,
        timers: TimerWheel,
        before_step: Callable[[], None],
    ) -> None:
        """
        Args:
            memory_budget: of the process.
            iteration: the budget of each iteration of the event loop.
            timers: of the loop.
            before_step: called before each step, which may end requests.
        """
        self._memory_budget = memory_budget
        self._iteration = iteration
        self._timers = timers
        self._before_step = before_step
        self._refused: dict[Seat, None] = {}
        """Whose requests were refused since holders were last counted."""
        self._work: Steps[Room] | None = None
        self._is_resting = False
        """No work is begun for a while."""
        self._short_timer: Timer | None = None
        self._long_shortage = 0
        """The number of the shortage that has lasted for a while."""

    def on_refusal(self, payer: Payer) -> None:
        """A request was refused, or cut, because memory is short."""
        self._refused[seat_of(payer)] = None
        if self._work is None and not self._is_resting:
            self._begin()
        self._watch()

    def _begin(self) -> None:
        budget = self._memory_budget
        is_long = budget.shortages == self._long_shortage
        self._work = budget.make_room_for(self._refused, is_long=is_long)
        self._iteration.later(self._step)

    def _step(self) -> None:
        assert self._work is not None
        self._iteration.spend(_STEP_UNITS)
        self._before_step()
        try:
            next(self._work)
        except StopIteration as stop:
            self._end(stop.value)
        except Exception:
            self._work = None  # a mistake with one holder must not be the last work
            raise
        else:
            self._iteration.later(self._step)

    def _end(self, room: Room) -> None:
        self._work = None
        # Requests that were just cut are among them, and are not to push out others in turn.
        self._refused.clear()
        if room.evicted:
            clients = sorted({_name(each) for each in room.greedy})
            extra = {"clients": clients, "cut": room.evicted, "bytes": room.size}
            _log.warning("clients hold too much memory", extra=extra)
        else:
            self._is_resting = True
            self._timers.after(_INTERVAL_S, self._wake)

    def _wake(self) -> None:
        self._is_resting = False
        if self._refused:
            self._begin()

    def _watch(self) -> None:
        if self._short_timer is None:
            self._look_again(self._memory_budget.shortages, 1)

    def _look_again(self, shortages: int, looks: int) -> None:
        """Look in a while whether memory has been short ever since.

        Args:
            shortages: the number of the shortage.
            looks: how many looks at it that will be.
        """
        self._short_timer = self._timers.after(_LOOK_S, lambda: self._look(shortages, looks))

    def _look(self, shortages: int, looks: int) -> None:
        self._short_timer = None
        budget = self._memory_budget
        if not budget.is_short:
            return
        if budget.shortages != shortages:
            self._watch()
        elif looks < _LOOKS:
            self._long_shortage = shortages
            self._look_again(shortages, looks + 1)
        else:
            self._before_step()
            budget.relieve()


def _name(client: Hashable | Seat) -> str:
    """What logs call a client, see `key_of_client`."""
    key = client[0] if isinstance(client, tuple) else client
    if isinstance(key, int):
        return str(IPv6Network((key << 64, 64)))
    return "unix" if key is None else str(key)
