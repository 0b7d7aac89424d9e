"""Which backend an attempt goes to: by the published pool and its policy, by the queue where its
model is scheduled, by the home of its sequence.

Invariant: from its placement on an attempt is counted in flight on its backend and port, until
`Accounts.attempt_ended`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeVar

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.pool import Picker, Placement, PoolRef
from lb.domain.sequence import SequenceStep
from lb.domain.why import Why
from lb.proxy.eligible import placement_of
from lb.proxy.exchange import Attempt, Exchange, RoutingHints, Waiting
from lb.proxy.queue import NO_BACKEND, Queue, no_backend
from lb.proxy.reruns import RerunLimits
from lb.proxy.steps import Steps
from lb.proxy.tracing import Tracer
from lb.wire.memory_budget import MemoryBudget

AnyAttempt = TypeVar("AnyAttempt", bound=Attempt)
Make = Callable[[Any, Backend, Port, float], AnyAttempt]
"""Makes an attempt of an exchange at a backend and its port, begun at a time."""

_ALL_FULL: Final = "all backends are at their request limit"
OUT_OF_MEMORY: Final = "load balancer is out of memory for requests"


def nobody_loads(_model: bytes, _protocol: AppProtocol, _is_standby: bool) -> None:
    """No models are loaded for requests, and no backends activated."""


class Placer:
    """Begins attempts. To be used from one event loop."""

    __slots__ = (
        "_clock", "_memory_budget", "_pool", "_queue", "_reruns", "_steps", "on_placing",
        "on_shortage", "tracer", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        pool: PoolRef,
        clock: Callable[[], float],
        memory_budget: MemoryBudget,
        queue: Queue,
        steps: Steps,
        reruns: RerunLimits,
    ) -> None:
        """
        Args:
            pool: the published pool.
            clock: monotonic seconds.
            memory_budget: of all bytes held.
            queue: requests that wait.
            steps: of sequences.
            reruns: requests that may have run and go again.
        """
        self._pool = pool
        self._clock = clock
        self._memory_budget = memory_budget
        self._queue = queue
        self._steps = steps
        self._reruns = reruns
        self.wanted: Callable[[bytes, AppProtocol, bool], None] = nobody_loads
        """Told of a model that a request waits for and of its protocol. True: a standby backend is
        to serve it; False: it is loaded nowhere."""
        self.on_placing: Callable[[], None] | None = None
        """Called before the next request is placed: somebody rests while none is open."""
        self.tracer: Tracer | None = None
        """Is told of hedges; None while nothing is traced."""
        self.on_shortage: Callable[[Exchange], None] | None = None
        """Told of a request that is refused because memory is short."""

    def place(
        self,
        exchange: Exchange,
        make: Make[AnyAttempt],
        now: float | None = None,
        waiting: Waiting | None = None,
    ) -> AnyAttempt | None:
        """Choose a backend and begin an attempt there: it is in flight from now on.

        Args:
            exchange: to be placed.
            make: makes the attempt.
            now: the time, where the caller has it.
            waiting: is told when the exchange has waited, whether for its turn or for a backend;
                None: it does not wait.

        Returns:
            None when it waits: `waiting` is told then, unless the exchange is over before.

        Raises:
            RequestRefused: no backend is eligible, all are full, memory is short, or it is a step
                of a sequence that cannot go on.
        """
        # HOT PATH (benchmarks/load). Counts are bumped here on slots instead of by methods of
        # Backend and Port: two calls fewer per request. `begin_attempt` is the reference. What is
        # scheduled, and was nowhere yet, takes no call more; `_choose` is the reference.
        if self.on_placing is not None:
            self.on_placing()
        if self._memory_budget.held >= self._memory_budget.short_at and (
            # What it holds is given back soonest when it goes on.
            exchange.ticket is None or exchange.ticket is not self._queue.turn
        ):
            if self.on_shortage is not None:
                self.on_shortage(exchange.whole)
            raise RequestRefused(Reason.MEMORY, OUT_OF_MEMORY)
        hints = exchange.hints
        if hints is None and not exchange.tried:
            picker = self._pool.current.placements[exchange.protocol].picker
            if picker is None:
                self.hold(exchange, now, waiting)
                return None
            backend = picker.pick()
            if backend is None:
                raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        else:
            if now is None:
                now = self._clock()
            if (
                hints is not None
                and (request_class := hints.request_class) is not None
                and request_class.snapshot is self._pool.current
                and exchange.ticket is None
                and not exchange.tried
            ):
                backend = self._queue.offer(exchange, hints, request_class, now, waiting)
            elif (ticket := exchange.ticket) is not None and ticket is self._queue.turn:
                self._queue.turn = None
                backend = ticket.backend
            else:
                backend = self._choose(exchange, now, waiting)
            if backend is None:
                return None
        port = backend.ports[exchange.protocol] or backend.port(exchange.protocol)
        backend.in_flight += 1
        port.in_flight += 1
        port.attempts += 1
        if now is None:
            now = self._clock()
        attempt = make(exchange, backend, port, now)
        if hints is not None:
            ticket = exchange.ticket
            if ticket is not None and ticket.backend is not None:
                attempt.ticket = ticket
        exchange.attempt = attempt
        exchange.backend = backend
        if exchange.sent_at == inf:
            self._queue.uploads[exchange] = None
        if exchange.attempts:
            exchange.attempts += 1
            trace = exchange.whole.trace
            if trace is not None:
                exchange.retell(trace.began(attempt, Why.RETRY))
        else:
            exchange.attempts = 1
            exchange.placed_at = now
        return attempt

    def begin_attempt(
        self, exchange: Exchange, make: Make[AnyAttempt], backend: Backend, now: float
    ) -> AnyAttempt:
        """As `place`, at a backend that was chosen already: one more stream of a call."""
        if self.on_placing is not None:
            self.on_placing()
        attempt = self._begin(exchange, make, backend, now)
        exchange.attempt = attempt
        exchange.backend = backend
        exchange.attempts += 1
        if exchange.attempts == 1:
            exchange.placed_at = now
        whole = exchange.whole
        if whole.trace is not None:
            if exchange.attempts > 1:
                whole.trace.began(attempt, Why.RETRY)
            elif whole is not exchange:
                whole.trace.began(attempt, Why.PART)
        return attempt

    def _begin(
        self, exchange: Exchange, make: Make[AnyAttempt], backend: Backend, now: float
    ) -> AnyAttempt:
        port = backend.port(exchange.protocol)
        backend.in_flight += 1
        port.in_flight += 1
        port.attempts += 1
        return make(exchange, backend, port, now)

    def place_beside(self, exchange: Exchange, make: Make[AnyAttempt], now: float) -> AnyAttempt:
        """Begin a second attempt beside the one that is under way, at another backend.

        Args:
            exchange: the attempt becomes its `hedge`, and its `attempt` only by
                `Accounts.overtake`.
            make: makes the attempt.
            now: the time.

        Raises:
            RequestRefused: no other backend can take it now.
        """
        if self._memory_budget.is_short:
            raise RequestRefused(Reason.MEMORY, OUT_OF_MEMORY)
        here = exchange.backend
        hints = exchange.hints
        ticket = exchange.ticket
        request_class = None
        if hints is not None and ticket is not None:
            request_class = self._queue.request_class.find(exchange, hints)
        if ticket is not None and request_class is not None:
            ticket = ticket.hedge()
            tried = () if here is None else (here,)
            backend: Backend | None = self._queue.beside(ticket, request_class, tried, now)
        else:
            ticket = None
            placement = placement_of(exchange, self._pool)
            others = tuple(each for each in placement.eligible if each is not here)
            if not others:
                raise RequestRefused(Reason.NO_BACKEND, NO_BACKEND)
            backend = placement.policy.build(self._reruns.spread(others)).pick()
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        attempt = self._begin(exchange, make, backend, now)
        attempt.ticket = ticket
        exchange.hedge = attempt
        if self.tracer is not None:
            self.tracer.hedged(exchange, attempt)
        return attempt

    def hold(self, exchange: Exchange, now: float | None, waiting: Waiting | None) -> None:
        """No backend is eligible: wait for one, or for the model to be loaded, if that is allowed.

        Raises:
            RequestRefused: it is not.
        """
        now = self._clock() if now is None else now
        queue = self._queue
        on_demand = (queue.on_demand_again if exchange.tried else queue.on_demand)(exchange)
        is_loaded = on_demand is not None and not (on_demand.error or on_demand.is_standby)
        if waiting is not None and not is_loaded and exchange.leave_variant():
            queue.place_anew(exchange, waiting)
            return
        if on_demand is not None and on_demand.error:
            raise no_backend(on_demand, on_demand.error)
        if waiting is None or not queue.may_hold(exchange, now, on_demand):
            raise no_backend(on_demand, NO_BACKEND)
        if on_demand is not None:
            self.wanted(exchange.model, exchange.protocol, on_demand.is_standby)
        queue.hold(exchange, waiting, now, on_demand)

    def _take_turn(
        self,
        exchange: Exchange,
        hints: RoutingHints,
        now: float,
        waiting: Waiting | None,
    ) -> Backend | None:
        """As `place` for what may have to wait for its turn. None also where its model is not
        scheduled any more: then it has no ticket."""
        queue = self._queue
        ticket = exchange.ticket
        request_class = queue.request_class.find(exchange, hints)
        if request_class is None:
            exchange.ticket = None
            return None
        if exchange.tried:
            self._reruns.check(exchange)
            if self._is_left_by_all(exchange, request_class.placement, now):
                self.hold(exchange, now, waiting)
                return None
        if request_class.trial is not None:
            backend = request_class.trial.take()
            if backend is not None:
                return backend
        if ticket is None:
            return queue.offer(exchange, hints, request_class, now, waiting)
        avoided = self._reruns.avoided(exchange, request_class.eligible)
        return queue.offer_again(exchange, ticket, request_class, now, waiting, avoided)

    def _home(
        self, exchange: Exchange, hints: RoutingHints, step: SequenceStep, now: float
    ) -> Backend | None:
        """The backend of a step of a sequence; None leaves it to the policy."""
        route = self._pool.current.routes.get(exchange.model)
        facts = None if route is None else route.facts
        placement = placement_of(exchange, self._pool)
        return self._steps.place(exchange, hints, step, placement, facts, now)

    def _choose(self, exchange: Exchange, now: float, waiting: Waiting | None) -> Backend | None:
        """As `place` for what needs a second look."""
        hints = exchange.hints
        if hints is not None:
            if hints.rows:
                chosen = self._take_turn(exchange, hints, now, waiting)
                if chosen is not None or exchange.ticket is not None:
                    return chosen
            elif hints.step is not None:
                if waiting is not None and not exchange.tried:
                    hints.question = self._steps.table.question(hints.step, hints.question)
                    if hints.question is not None:
                        self._queue.hold_for_news(exchange, waiting, hints.question)
                        return None
                home = self._home(exchange, hints, hints.step, now)
                if home is not None:
                    return home
        placement = placement_of(exchange, self._pool)
        picker = placement.picker
        if exchange.tried:
            self._reruns.check(exchange)
            if self._is_left_by_all(exchange, placement, now):
                self.hold(exchange, now, waiting)
                return None
            picker = self._rest(exchange, placement)
        if picker is None:
            picker = self._picker_for_questions(exchange)
            if picker is None:
                self.hold(exchange, now, waiting)
                return None
        backend = picker.pick()
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        return backend

    def _picker_for_questions(self, exchange: Exchange) -> Picker | None:
        """Nothing is loaded for a question: any backend can say that a model is not loaded. None
        where that is not so."""
        snapshot = self._pool.current
        route = snapshot.routes.get(exchange.model)
        if (
            route is None
            or route.on_demand is None
            or exchange.operation.kind is not OperationKind.READ
        ):
            return None
        return snapshot.placements[exchange.protocol].picker

    def _is_left_by_all(self, exchange: Exchange, placement: Placement, now: float) -> bool:
        """Whether none would take it, and it may wait until one does."""
        return all(
            each in exchange.tried for each in placement.eligible
        ) and self._queue.may_hold_again(exchange, now)

    def _rest(self, exchange: Exchange, placement: Placement) -> Picker | None:
        """Picks among those that have not failed a request yet."""
        rest = tuple(b for b in placement.eligible if b not in exchange.tried)
        # With none left `RetryPolicy` let it through: the same will do on a fresh connection.
        rest = self._reruns.spread(rest or placement.eligible)
        return placement.policy.build(rest) if rest else None
