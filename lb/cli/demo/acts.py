"""What happens to the Tritons of the demo, by itself or by keys, and what clients saw of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final

from lb.cli.demo.load import RequestTally
from lb.cli.demo.tritons import SimulatedTritons

KEYS: Final = "k kill   f freeze   d drain   r restore   Ctrl-C end"

Change = Callable[[str, str], Awaitable[None]]
"""Has the load balancer drain or enable a backend: its name, and the action."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When things happen, in seconds from the first request."""

    acts_s: tuple[float, float, float]
    """A Triton is killed, frozen, drained."""
    ends_s: float = inf

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it."""
        return self.ends_s == inf


ENDLESS: Final = Timeline((15.0, 30.0, 45.0))
ONCE: Final = Timeline((8.0, 16.0, 24.0), 29.0)


@dataclass(slots=True)
class Event:
    """One thing that happened, and what clients saw from then until the next one."""

    at_s: float
    text: str
    answered: int
    failed: int
    """Tallies at that time."""


class Acts:
    """Does something to Tritons, and remembers what clients saw."""

    def __init__(
        self,
        tritons: SimulatedTritons,
        tallies: Sequence[RequestTally],
        change: Change,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            tritons: those of the demo.
            tallies: what became of the requests that go through the load balancer.
            change: drains and enables.
            say: is given each line that tells of an event.
        """
        self._tritons = tritons
        self._tallies = tallies
        self._change = change
        self._say = say
        self._began = monotonic()
        self._drained: list[str] = []
        self._is_by_hand = False
        self.events: list[Event] = []

    async def play(self, times: Sequence[float]) -> None:
        """Kill, freeze and drain one at these times, and put each right half way to the next, until
        somebody does things by hand."""
        pause_s = (times[1] - times[0]) / 2
        acts = (self.kill, self.freeze, self.drain)
        script = [
            step
            for at_s, act in zip(times, acts, strict=True)
            for step in ((at_s, act), (at_s + pause_s, self.restore))
        ]
        for at_s, act in script:
            await self._sleep_until(at_s)
            if self._is_by_hand:
                return
            await act()

    def take_over(self) -> None:
        """Somebody does things by hand: nothing happens by itself any more."""
        self._is_by_hand = True

    async def kill(self) -> None:
        """Kill the fastest one, which has most to lose."""
        if name := self._victim():
            self._tritons.kill(name)
            self._happened(f"killed {name} (SIGKILL)")

    async def freeze(self) -> None:
        """Freeze the fastest one."""
        if name := self._victim():
            self._tritons.freeze(name)
            self._happened(f"froze {name} (SIGSTOP)")

    async def drain(self) -> None:
        """Drain the fastest one."""
        if name := self._victim():
            self._drained.append(name)
            await self._change(name, "drain")
            self._happened(f"drained {name}")

    async def restore(self) -> None:
        """Bring all of them back."""
        restored = await self._tritons.restore()
        drained, self._drained = self._drained, []
        for name in drained:
            await self._change(name, "enable")
        if names := [*restored, *drained]:
            self._happened(f"brought {', '.join(names)} back")

    def lines(self) -> list[str]:
        """The latest events, each with what clients saw since."""
        return [self._line(at) for at in range(max(0, len(self.events) - 6), len(self.events))]

    def _victim(self) -> str:
        """The fastest one that runs, if it is not the last one; else nobody."""
        left = [name for name in self._tritons.running() if name not in self._drained]
        return max(left, key=self._tritons.speed) if len(left) > 1 else ""

    def _happened(self, text: str) -> None:
        self.close()
        at_s = monotonic() - self._began
        self.events.append(Event(at_s, text, *self._counts()))
        self._say(f"  {at_s:4.0f}s  {text}")

    def close(self) -> None:
        """Say what clients saw since the last event."""
        if self.events:
            self._say(f"          {self._seen(len(self.events) - 1)}")

    def _line(self, at: int) -> str:
        event = self.events[at]
        return f"  {event.at_s:4.0f}s  {event.text}: {self._seen(at)}"

    def _seen(self, at: int) -> str:
        event = self.events[at]
        if at + 1 < len(self.events):
            answered, failed = self.events[at + 1].answered, self.events[at + 1].failed
        else:
            answered, failed = self._counts()
        return f"clients saw {answered - event.answered} answers, {failed - event.failed} failed"

    def _counts(self) -> tuple[int, int]:
        failed = sum(tally.failed + tally.wrong for tally in self._tallies)
        return sum(tally.right for tally in self._tallies), failed

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._began + at_s - monotonic()))
