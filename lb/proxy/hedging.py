"""Requests that take longer than most are sent to a second backend; the first answer counts.

Nothing is set per request: what is under way is looked at every few milliseconds, while this is on.
A request is sent a second time at most, when that does no harm, and within a budget: when
all is slow, more work would make it slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.domain.hedge import Durations, HedgeRules
from lb.domain.operation import OperationKind
from lb.domain.pool import ConductSink
from lb.domain.rerun import RerunBudget
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.reruns import Schedule
from lb.proxy.sent import SentTimes

_LOOKS: Final = 4
"""Within the shortest time after which a request is sent again."""
_SHORTEST_S: Final = 0.005
"""Between two looks."""
_LONGEST_S: Final = 0.1
_FLOOR: Final = 1.0
"""Requests a second that may be sent twice in any case."""


class Hedger:
    """Those of one process. Hears of good answers, as whoever judges backends does."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        under_way: Callable[[], Iterable[Exchange]],
        begin: Callable[[Exchange], Attempt | None],
        cancel: Callable[[Exchange], None],
        *,
        schedule: Schedule | None = None,
    ) -> None:
        """
        Args:
            dispatcher: of both relays.
            under_way: gives the attempts that have not ended.
            begin: sends a request to a second backend, if it can be.
            cancel: ends the second attempt of an exchange.
            schedule: has something called after seconds.
        """
        self._dispatcher = dispatcher
        self._conduct: ConductSink = dispatcher.conduct
        self._under_way = under_way
        self._begin = begin
        self._cancel = cancel
        self._schedule = schedule or _on_the_loop
        self.rules: HedgeRules | None = None
        """None: it is off."""
        self._budget = RerunBudget(0.0, 0.0, dispatcher.clock())
        self._durations = Durations()
        self._running: list[Attempt] = []
        """Second attempts."""
        self._sent = SentTimes()
        self._slow: set[Exchange] = set()
        """Requests under way that took longer than most: sent again, if that was allowed."""
        self._pause_s = _LONGEST_S
        """Between two looks."""
        self._pause_due = 0.0
        """When it is to be found anew: there may be many models."""
        self._turn = 0
        """Which of the calls that are on their way is the one that counts."""
        self.count = 0
        """Requests that were sent twice."""
        self.refused = 0
        """Those that were not, since the budget was spent."""

    def use(self, rules: HedgeRules | None) -> None:
        """Go by these from now on; None: send nothing twice."""
        if rules == self.rules:
            return
        self.rules = rules
        self._turn += 1
        if rules is None:
            self._dispatcher.conduct = self._conduct
            self._end_running(all_of_them=True)
            return
        self._dispatcher.conduct = self
        self._budget = RerunBudget(rules.share, _FLOOR, self._dispatcher.clock())
        self._arm(rules)

    # What the dispatcher tells

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """See `ConductSink`."""
        self._durations.add(model, took_s)
        self._conduct.answered(backend, model, took_s, now)

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """See `ConductSink`."""
        self._conduct.failed(backend, model, fault, took_s, now)

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """See `ConductSink`."""
        self._conduct.abandoned(backend, model, waited_s, now)

    # Looking

    def _arm(self, rules: HedgeRules) -> None:
        now = self._dispatcher.clock()
        if now >= self._pause_due:
            self._pause_due = now + _LONGEST_S
            known = (self._delay_s(model, rules) for model in self._durations.models())
            shortest = min((each for each in known if each), default=_LONGEST_S)
            self._pause_s = min(max(shortest / _LOOKS, _SHORTEST_S), _LONGEST_S)
        turn = self._turn
        self._schedule(self._pause_s, lambda: self._look(turn))

    def _delay_s(self, model: bytes, rules: HedgeRules) -> float:
        """After how long a request is sent again; 0 where that is not known."""
        usual_s = self._durations.quantile(model, rules.quantile)
        return max(usual_s, rules.least_s) if usual_s else 0.0

    def _look(self, turn: int) -> None:
        rules = self.rules
        if rules is None or turn != self._turn:
            return
        self._end_running()
        for backend in self._dispatcher.pool.current.backends:
            backend.reports_due = max(backend.reports_due, 1)
        now = self._dispatcher.clock()
        delays: dict[bytes, float] = {}
        self._sent.begin_look()
        slow, self._slow = self._slow, set()
        for exchange in tuple(self._under_way()):
            attempt = exchange.attempt
            if (
                attempt is None
                or exchange.attempts != 1
                or exchange.operation.kind is not OperationKind.INFERENCE
            ):
                continue
            delay_s = delays.get(exchange.model)
            if delay_s is None:
                delay_s = delays[exchange.model] = self._delay_s(exchange.model, rules)
            if exchange in slow:
                self._slow.add(exchange)
                continue
            since = self._sent.since(exchange, attempt, now)
            if since is not None and delay_s and now - since >= delay_s:
                self._slow.add(exchange)  # once is enough, even if it is in vain
                self._hedge(exchange, now)
        self._arm(rules)

    def _hedge(self, exchange: Exchange, now: float) -> None:
        """Send a request to a second backend, where that is allowed and helps."""
        dispatcher = self._dispatcher
        particulars = exchange.particulars
        if (
            not exchange.is_under_way
            or not exchange.may_run_twice
            or exchange.model in dispatcher.reruns.never
            or dispatcher.reruns.deadly.is_blocked(exchange.model, now, now)
            or (particulars is not None and particulars.regions)
        ):
            return
        here = exchange.backend
        others = dispatcher.placement(exchange).eligible
        if not any(each is not here and each.has_room for each in others):
            return
        if not self._budget.take(dispatcher.reruns.attempts, now):
            self.refused += 1
            return
        hedge = self._begin(exchange)
        if hedge is None:
            self._budget.give_back()
        else:
            self.count += 1
            self._running.append(hedge)

    def _end_running(self, *, all_of_them: bool = False) -> None:
        """Forget those that are over, and cancel those that nobody needs."""
        running, self._running = self._running, []
        for hedge in running:
            exchange = hedge.exchange
            if exchange.hedge is not hedge:
                continue
            if all_of_them or not (exchange.is_sent and exchange.is_under_way):
                self._cancel(exchange)
            else:
                self._running.append(hedge)

    @property
    def won(self) -> int:
        """Requests that were sent twice, and that the second backend was the first to answer."""
        return self._dispatcher.overtaken

    def __len__(self) -> int:
        """Second attempts under way."""
        return len(self._running)


def _on_the_loop(delay_s: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay_s, call)
