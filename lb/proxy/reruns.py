"""Requests that may have run and go again: whether, how soon, and next to whom.

A server that died may have died of any of the requests that it had. Each goes again once at most,
after a short while in which the ends of other connections are seen; and as far as the wait is
short, measured by what such requests take, not beside another of them, so that the one that kills
takes none of the others with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Final, NamedTuple

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import PoolRef
from lb.domain.rerun import DeathGrants, FairRerunBudget, PoisonModels
from lb.domain.retry import LOSSES, RetryRules
from lb.proxy.exchange import Attempt, Exchange, Loss

_BACK_OFF_S: Final = 0.025
"""On average, before a request goes again: servers that die together are seen to by then. On busy
machines the kernel takes that long to close the sockets of a killed process."""
_LOOK_S: Final = 0.01
"""How often those that wait for others are looked at."""
_PATIENCE_S: Final = 0.25
"""How long one waits for others, where requests take no longer."""
_TIMES: Final = 2.0
"""A request waits so many times as long as requests of its model take, for others under way."""
_LONGEST_S: Final = 3.0
"""The longest that it waits."""
_DOUBT_S: Final = 1.5
"""One of which a server may have died waits so long for a sign of life of that: probes are sent
every second."""
_DEATHS: Final = LOSSES | {Outcome.STALLED, Outcome.SILENT}
"""All requests of a backend that died, or hangs, end so."""
_SUSPECT_S: Final = 10.0
"""Who has not killed its server for so long keeps nobody waiting."""
_TOGETHER: Final = 8
"""One in so many goes to one backend at once, where very many wait."""

Schedule = Callable[[float, Callable[[], None]], object]
"""Has something called after seconds, precisely."""


def _on_the_loop(delay_s: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay_s, call)


class _Suspect:
    """A request that goes again."""

    __slots__ = ("attempt", "due", "exchange", "go", "since")

    def __init__(
        self, exchange: Exchange, go: Callable[[], None], since: float, due: float
    ) -> None:
        self.exchange = exchange
        self.go = go
        self.since = since
        self.due = due
        self.attempt = 0
        """Which one its next attempt is, once its time has come."""

    def is_waiting(self) -> bool:
        """Whether it waits for its turn."""
        exchange = self.exchange
        return (
            not exchange.is_under_way
            and exchange.attempts == self.attempt - 1
            and not exchange.finished
        )

    def is_under_way(self, now: float) -> bool:
        """Whether its server may still die of it: it has it, and said nothing."""
        attempt = self.exchange.attempt
        return (
            attempt is not None
            and attempt.outcome is None
            and self.exchange.attempts == self.attempt
            and not attempt.first_byte_at
            and now - attempt.began_at < _SUSPECT_S
        )


class _Doubt(NamedTuple):
    """It is still to be seen whether a request that goes nowhere any more took a second server
    with it."""

    doubted: Loss
    at: float
    """When the second one was lost."""
    protocol: AppProtocol
    models: Collection[bytes]
    until: float


class RerunLimits:
    """The limits of one process. To be used from its event loop."""

    def __init__(
        self,
        pool: PoolRef,
        clock: Callable[[], float],
        rules: RetryRules | None = None,
        *,
        rng: Random | None = None,
        schedule: Schedule = _on_the_loop,
    ) -> None:
        """
        Args:
            pool: the published pool.
            clock: monotonic seconds.
            rules: those in force until `configure`.
            rng: says how long each waits.
            schedule: has something called after seconds.
        """
        rules = rules or RetryRules()
        self._pool = pool
        self._clock = clock
        self._rng = rng or Random()
        self._schedule = schedule
        self.budget = FairRerunBudget(rules.share, rules.floor, clock())
        self._grants = DeathGrants()
        self.poison_models = PoisonModels()
        self.refused: Counter[str] = Counter()
        """Requests that might have gone again and did not, by why."""
        self.count = 0
        """Requests that went again."""
        self._waiting: list[_Suspect] = []
        self._running: list[_Suspect] = []
        self._counted: Counter[Backend | None] | None = None
        """What `_busy` found, while many are placed at once; None otherwise."""
        self._doubts: list[_Doubt] = []
        self._took_s: dict[bytes, float] = {}
        """How long those that were lost had been under way at most, by model: requests take at
        least that."""
        self._is_due = False

    def configure(self, rules: RetryRules) -> None:
        """Go by other rules from now on."""
        self.budget.configure(rules.share, rules.floor)

    def note_loss(
        self, exchange: Exchange, outcome: Outcome, models: Collection[bytes] = ()
    ) -> bool:
        """Note that a request, which may run twice, was perhaps lost with its server. To be called
        before `take`, and also where it cannot go again. False: two servers were lost with it.

        Args:
            exchange: whose attempt ended without an answer.
            outcome: how.
            models: see `take`.
        """
        if outcome not in LOSSES:
            return True
        now = self._clock()
        before, backend = exchange.loss, exchange.backend
        is_dead = before is not None and self._is_dead(before, exchange.protocol)
        if before is not None and before.backend is backend and is_dead is None:
            is_dead = False  # it was connected to since, so it has died once at most
        if backend is not None:
            doubted = before if is_dead is None else None
            exchange.loss = _loss_of(backend, _began_at(exchange), now, before, doubted)
        if is_dead:
            self._note_second(models or (exchange.model,), now)
        return not is_dead

    def take(self, exchange: Exchange, outcome: Outcome, models: Collection[bytes] = ()) -> bool:
        """Take another run of a request, which may run twice, out of the budget. False: it does not
        go again.

        Args:
            exchange: whose attempt ended without an answer, or will.
            outcome: how.
            models: one for each lost request of a stream; none where the exchange is one request.
        """
        now = self._clock()
        models = models or (exchange.model,)
        began_at = _began_at(exchange)
        if outcome in LOSSES or outcome is Outcome.LATE:
            before = exchange.loss
            if (
                outcome is Outcome.LATE
                and before is not None
                and self._is_dead(before, exchange.protocol)
            ):
                self._note_second(models, now)
                return False
            if any(self.poison_models.is_blocked(model, now, began_at) for model in set(models)):
                return self.refuse("deadly_model")
        count = len(models)
        if not (
            self._take_grant(exchange.backend, outcome, now, count)
            or self.budget.take(exchange.client_key, self.attempts, now, count)
        ):
            return self.refuse("budget")
        if outcome is Outcome.LATE and exchange.backend is not None:
            exchange.loss = _loss_once_left(exchange.loss, exchange.backend, began_at, now)
        self.count += count
        return True

    def given_up(
        self, exchange: Exchange, outcome: Outcome, models: Collection[bytes] = ()
    ) -> None:
        """A request goes nowhere any more: whether two servers were lost with it is found out all
        the same.

        Args:
            exchange: whose attempt ended without an answer.
            outcome: how.
            models: see `take`.
        """
        loss = exchange.loss
        if outcome in LOSSES and loss is not None and loss.doubted is not None:
            models, until = models or (exchange.model,), loss.at + _DOUBT_S
            doubt = _Doubt(loss.doubted, loss.at, exchange.protocol, models, until)
            self._doubts.append(doubt)
            self._wake(_LOOK_S)

    def _note_second(self, models: Collection[bytes], at: float) -> None:
        """A second server was lost with a request, or with requests of one stream."""
        for model in set(models):
            self.poison_models.suspect(model, at)
        self.refuse("lost_twice")

    def _take_grant(
        self, backend: Backend | None, outcome: Outcome, now: float, count: int
    ) -> bool:
        """Take as many of the runs that are granted where a backend seems to have died with all
        that it had. False: too few are left, or it did not die."""
        if backend is None or outcome not in _DEATHS or not self.budget.share:
            return False
        return self._grants.take(backend, backend.in_flight + 1, now, count)

    def ended_beside(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """One of two attempts at a time ended without an answer: if its server may have died of
        the request, or still may, the next loss may be the request's second."""
        exchange = attempt.exchange
        before = exchange.loss
        if outcome in LOSSES:
            exchange.loss = _loss_of(attempt.backend, attempt.began_at, now, before, before)
        elif outcome is Outcome.LATE:
            exchange.loss = _loss_once_left(before, attempt.backend, attempt.began_at, now)

    def _is_dead(self, loss: Loss, protocol: AppProtocol) -> bool | None:
        """Whether a server died of a request; None: that is not known yet."""
        usable = self._pool.current.usable(protocol)
        for backend, began_at in loss.left:
            is_gone = backend not in usable and not backend.port(protocol).is_hung
            if is_gone or backend.has_left_since(began_at):
                return True
        if loss.was_fatal():
            return True
        if loss.was_survived():
            return False
        return None if loss.backend in usable else True

    def check(self, exchange: Exchange) -> None:
        """See that a request which goes again may still do so.

        Raises:
            RequestRefused: two servers seem to have died of it.
        """
        loss = exchange.loss
        if loss is None or loss.doubted is None or loss.doubted.was_survived():
            return
        self._note_second((exchange.model,), loss.at)
        raise RequestRefused(Reason.UPSTREAM_LOST, "two backends were lost with this request")

    @property
    def attempts(self) -> int:
        """At all backends, since they are known."""
        backends = self._pool.current.backends
        return sum(port.attempts for backend in backends for port in backend.ports if port)

    def refuse(self, why: str) -> bool:
        """Count a request that might have gone again and does not. Returns False."""
        self.refused[why] += 1
        return False

    def later(self, exchange: Exchange, go: Callable[[], None]) -> None:
        """Have a request placed again soon, unless it is finished by then.

        Args:
            exchange: it has no attempt under way.
            go: places it.
        """
        now = self._clock()
        due = now + self._rng.uniform(0.5, 1.5) * _BACK_OFF_S
        if not (self._waiting or self._busy()):
            self._took_s.clear()
        if exchange.loss is not None and exchange.loss.backend is not None:
            took_s = self._took_s.get(exchange.model, 0.0)
            self._took_s[exchange.model] = max(took_s, now - _began_at(exchange))
        self._waiting.append(_Suspect(exchange, go, now, due))
        self._wake(due - now)

    def spread(self, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
        """Choose among some backends those with the fewest requests that go again."""
        if not self._running:
            return backends
        busy = self._busy()
        least = min((busy[backend] for backend in backends), default=0)
        return tuple(backend for backend in backends if busy[backend] == least)

    def avoided(self, exchange: Exchange, eligible: tuple[Backend, ...]) -> tuple[Backend, ...]:
        """Where a request that goes again does not go: where it was, and beside others that do, if
        there is another place."""
        tried = exchange.tried
        if not tried or not self._running:
            return tried
        calm = self.spread(tuple([backend for backend in eligible if backend not in tried]))
        return tuple([backend for backend in eligible if backend not in calm])

    def _busy(self) -> Counter[Backend | None]:
        """Requests that go again and are under way, by their backend."""
        if self._counted is not None:
            return self._counted
        now = self._clock()
        under_way = [each for each in self._running if each.is_under_way(now)]
        self._running = under_way + [each for each in self._running if each.is_waiting()]
        return Counter(each.exchange.backend for each in under_way)

    def _wake(self, delay_s: float) -> None:
        if not self._is_due:
            self._is_due = True
            self._schedule(delay_s, self._look)

    def _look(self) -> None:
        """Let those go whose time has come."""
        self._is_due = False
        self._resolve_doubts()
        waiting = [each for each in self._waiting if not each.exchange.finished]
        self._waiting = []
        try:
            self._let_go(waiting)
        finally:
            self._counted = None
            left = [each for each in waiting if not each.attempt]
            self._waiting = left + self._waiting  # some may have failed again meanwhile
            if self._waiting or self._doubts:
                self._wake(_LOOK_S)

    def _resolve_doubts(self) -> None:
        """See of which requests that go nowhere any more a second server died."""
        now = self._clock()
        doubts, self._doubts = self._doubts, []
        for each in doubts:
            is_dead = self._is_dead(each.doubted, each.protocol)
            if is_dead is None and now < each.until:
                self._doubts.append(each)
            elif is_dead is not False:
                self._note_second(each.models, each.at)

    def _let_go(self, waiting: list[_Suspect]) -> None:
        """Have those placed whose time has come."""
        now = self._clock()
        at_once = max(1, len(waiting) // _TOGETHER)
        busy = self._counted = self._busy()
        for each in waiting:
            if now < each.due or (
                now < self._until(each)
                and (self._is_doubtful(each) or not self._has_room(each.exchange, at_once))
            ):
                continue
            each.attempt = each.exchange.attempts + 1
            each.go()
            self._running.append(each)
            if each.is_under_way(now):
                busy[each.exchange.backend] += 1

    def _is_doubtful(self, suspect: _Suspect) -> bool:
        """Whether it is still to be seen if a server died of it."""
        loss = suspect.exchange.loss
        doubted = None if loss is None else loss.doubted
        return doubted is not None and self._is_dead(doubted, suspect.exchange.protocol) is None

    def _until(self, suspect: _Suspect) -> float:
        """How long one waits for others: while one after the other may have been answered, and as
        long as its own answer can come in time; or to see whether a server died of it."""
        if self._is_doubtful(suspect):
            return suspect.since + _DOUBT_S
        takes_s = self._took_s.get(suspect.exchange.model, 0.0)
        patience_s = min(max(_PATIENCE_S, _TIMES * takes_s), _LONGEST_S)
        return min(suspect.since + patience_s, suspect.exchange.deadline - takes_s)

    def _has_room(self, exchange: Exchange, at_once: int) -> bool:
        """Whether a backend that it was not at has few of those that go again."""
        eligible: Iterable[Backend] = self._pool.current.placements[exchange.protocol].eligible
        busy = self._busy()
        rest = [backend for backend in eligible if backend not in exchange.tried]
        return not rest or any(busy[backend] < at_once for backend in rest)

    def __len__(self) -> int:
        """Requests that wait to go again."""
        return len(self._waiting)


def _loss_of(
    backend: Backend, began_at: float, now: float, before: Loss | None, doubted: Loss | None
) -> Loss:
    """What is known of a request once the connection of an attempt was lost, too."""
    left = () if before is None else before.left
    return Loss(backend, now, began_at, backend.deaths, doubted, left)


def _loss_once_left(before: Loss | None, backend: Backend, began_at: float, now: float) -> Loss:
    """What is known of a request once it was given up at a backend too, which takes too long."""
    if before is None:
        return Loss(None, now, left=((backend, began_at),))
    return before._replace(left=(*before.left, (backend, began_at)))


def _began_at(exchange: Exchange) -> float:
    """When the last attempt of an exchange began."""
    return exchange.attempt.began_at if exchange.attempt is not None else 0.0
