"""Requests that take longer than most are sent to a second backend; the first answer counts.

Nothing is set per request: attempts under way are checked every few milliseconds, while this is on.
A request is sent a second time at most, when that does no harm, and within a budget: when
all is slow, more work would make it slower.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from lb.domain.hedge import HedgeRules
from lb.domain.operation import OperationKind
from lb.domain.rerun import RerunBudget
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Attempt, Exchange
from lb.settings.model import Settings

_SCANS: Final = 4
"""Within the shortest time after which a request is sent again."""
_SHORTEST_S: Final = 0.005
"""Between two scans."""
_LONGEST_S: Final = 0.1
_FLOOR: Final = 1.0
"""Requests a second that may be sent twice in any case."""


def hedge_rules(settings: Settings) -> HedgeRules | None:
    """Read from settings when requests are sent to a second backend; None: never."""
    own = settings.hedging
    if not own.enabled:
        return None
    return HedgeRules(quantile=own.quantile, share=own.max_ratio)


class Hedger:
    """The hedges of one process. How long good answers take is known to `Blame`. A check of
    `AttemptScan`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        begin: Callable[[Exchange], Attempt | None],
        cancel: Callable[[Exchange], None],
    ) -> None:
        """
        Args:
            dispatcher: of both relays.
            begin: sends a request to a second backend, if it can be.
            cancel: ends the second attempt of an exchange.
        """
        self._dispatcher = dispatcher
        self._begin = begin
        self._cancel = cancel
        self.rules: HedgeRules | None = None
        """None: it is off."""
        self._budget = RerunBudget(0.0, 0.0, dispatcher.clock())
        self._durations = dispatcher.blame.durations
        self._running: list[Attempt] = []
        """Second attempts."""
        self._delays: dict[bytes, float] = {}
        """After how long a request is sent again, by model, as this scan has found it."""
        self._interval_s = _LONGEST_S
        self._interval_due = 0.0
        """When it is to be found anew: there may be many models."""
        self.count = 0
        """Requests that were sent twice."""
        self.models: dict[bytes, int] = {}
        """Requests that were sent twice, by model; only of models whose durations are known, which
        are bounded."""
        self.refused = 0
        """Requests that were not sent twice, since the budget was spent."""

    def configure(self, rules: HedgeRules | None) -> None:
        """Go by these from now on; None: send nothing twice. The monitor is to be woken."""
        if rules == self.rules:
            return
        self.rules = rules
        if rules is None:
            self._end_running(all_of_them=True)
            return
        self._budget.configure(rules.share, _FLOOR)

    # What the scan of attempts asks

    @property
    def may_rest(self) -> bool:
        """See `AttemptCheck`."""
        return not self._running

    def interval_s(self, now: float) -> float:
        """See `AttemptCheck`."""
        rules = self.rules
        if rules is None:
            return inf
        if now >= self._interval_due:
            self._interval_due = now + _LONGEST_S
            known = (self._delay_s(model, rules) for model in self._durations.models())
            shortest = min((each for each in known if each), default=_LONGEST_S)
            self._interval_s = min(max(shortest / _SCANS, _SHORTEST_S), _LONGEST_S)
        return self._interval_s

    def begin(self, _now: float) -> None:
        """See `AttemptCheck`."""
        self._end_running()
        for backend in self._dispatcher.pool.current.backends:
            backend.reports_due = max(backend.reports_due, 1)
        self._delays = {}

    def check(self, exchange: Exchange, since: float, now: float) -> bool:
        """See `AttemptCheck`. Once is enough, even if it is in vain."""
        rules = self.rules
        if (
            rules is None
            or exchange.attempts != 1
            or exchange.operation.kind is not OperationKind.INFERENCE
        ):
            return False
        delay_s = self._delays.get(exchange.model)
        if delay_s is None:
            delay_s = self._delays[exchange.model] = self._delay_s(exchange.model, rules)
        if not delay_s or now - since < delay_s:
            return False
        self._hedge(exchange, now)
        return True

    def _delay_s(self, model: bytes, rules: HedgeRules) -> float:
        """After how long a request is sent again; 0 where that is not known."""
        usual_s = self._durations.quantile(model, rules.quantile)
        return max(usual_s, rules.least_s) if usual_s else 0.0

    def _hedge(self, exchange: Exchange, now: float) -> None:
        """Send a request to a second backend, where that is allowed and helps."""
        dispatcher = self._dispatcher
        if not dispatcher.retry.may_hedge(exchange, now):
            return
        if not self._budget.take(dispatcher.reruns.attempts, now):
            self.refused += 1
            return
        hedge = self._begin(exchange)
        if hedge is None:
            self._budget.give_back()
        else:
            self.count += 1
            self.models[exchange.model] = self.models.get(exchange.model, 0) + 1
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
        return self._dispatcher.accounts.overtaken

    def __len__(self) -> int:
        """Second attempts under way."""
        return len(self._running)
