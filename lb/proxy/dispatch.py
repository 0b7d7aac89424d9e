"""Admission, placement and the accounts of every attempt: the one place that counts in flight.

Invariants: between `place` and `attempt_ended` an attempt is counted exactly once on its backend
and port, whatever happens to the client meanwhile; what a request holds of its client's limits is
given back once both its client and its backend are done with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lb.access.gate import Claim, Gate
from lb.balancing.schedule import QueueScheduler
from lb.balancing.sequences import SequenceTable
from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend, Port
from lb.domain.client import Client
from lb.domain.errors import RequestRefused
from lb.domain.fault import Fault
from lb.domain.operation import OperationKind
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.domain.pool import ConductSink, OutcomeSink, Picker, Placement, PoolRef
from lb.domain.retry import LOSSES, REPLAY_TABLE, Ran, Verdict, decide
from lb.kserve.errors import Meaning
from lb.kserve.faults import fault_of_answer
from lb.proxy.blame import Blame
from lb.proxy.exchange import Attempt, Exchange, Particulars, Queued, Suspicion
from lb.proxy.queue import Queue
from lb.proxy.reruns import Reruns
from lb.proxy.steps import Steps
from lb.telemetry.record import RequestSink
from lb.wire.ledger import Ledger

AnyAttempt = TypeVar("AnyAttempt", bound=Attempt)
Make = Callable[[Any, Backend, Port, float], AnyAttempt]
"""Makes an attempt of an exchange at a backend and its port, begun at a time."""

_ANSWERED: Final = Outcome.ANSWERED
_SAME_BACKEND_WILL_DO: Final = frozenset({Outcome.STALE, Outcome.REFUSED})
"""What a fresh connection to the same backend mends, where there is no other."""
_NO_PARTICULARS: Final = Particulars()
_MAX_SEQUENCES: Final = 1_000_000
"""Remembered unless told otherwise."""
_NO_BACKEND: Final = "no backend is available"
_ALL_FULL: Final = "all backends are at their request limit"
_MODEL_IS_ELSEWHERE: Final = frozenset({Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY})
_JUDGED: Final = frozenset({OperationKind.INFERENCE, OperationKind.OTHER})
"""Requests that tell how a backend fares with a model."""
_ERRING: Final = _JUDGED | {OperationKind.STREAM}
"""Those whose errors do."""
_MOVABLE: Final = frozenset({OperationKind.READ, OperationKind.INFERENCE, OperationKind.STREAM})
"""Requests that another backend can serve as well when one says that it cannot."""
_FAULTS: Final = {
    Outcome.CONNECT_TIMEOUT: Fault.CONNECTION,
    Outcome.CONNECT_FAILED: Fault.CONNECTION,
    Outcome.LOST: Fault.CONNECTION,
    Outcome.PROTOCOL_ERROR: Fault.CONNECTION,
    Outcome.STALLED: Fault.CONNECTION,
    Outcome.RESET: Fault.ERROR,
}
"""What speaks against a backend. A refused connection takes it out anyway."""
_PERHAPS_THE_REQUEST: Final = (
    frozenset({Outcome.STALE, Outcome.LOST}),
    frozenset({Outcome.RESET}),
)
"""By protocol: what ends the attempt of a request that the backend cannot read, and of no other
one. Over gRPC the others on a connection that is lost would be suspects as well."""
_ABANDONED: Final = frozenset({
    Outcome.LATE, Outcome.DEADLINE, Outcome.CANCELLED, Outcome.OVERTAKEN,
})  # fmt: skip


def _has_turn(exchange: Exchange) -> bool:
    """Whether it waits no more: what it holds is given back soonest when it goes on."""
    particulars = exchange.particulars
    return (
        particulars is not None
        and particulars.queued is not None
        and particulars.queued.turn is not None
    )


def _is_good(exchange: Exchange, code: int) -> bool:
    """Whether an answer is no error."""
    return not code if exchange.protocol else 200 <= code < 400


def _nobody_cares(_backend: Backend, _model: bytes, _version: bytes) -> None:
    """There is no table of models."""


class _NoConduct:
    """Nobody judges backends by how requests fare."""

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """Nobody cares."""

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """Nobody cares."""

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """Nobody cares."""


class Dispatcher:
    """Places exchanges on backends and keeps their accounts."""

    def __init__(
        self,
        ref: PoolRef,
        outcomes: OutcomeSink,
        requests: RequestSink,
        *,
        clock: Callable[[], float],
        ledger: Ledger,
        max_attempts: int,
        gate: Gate | None = None,
    ) -> None:
        self.pool = ref
        """The published pool."""
        self._outcomes = outcomes
        self.requests = requests
        """Is told of finished requests."""
        self.clock = clock
        self._ledger = ledger
        self.max_attempts = max_attempts
        self.gate = gate or Gate()
        self.steps = Steps(SequenceTable(limit=_MAX_SEQUENCES))
        """The sequences of both protocols; to be replaced before the first request."""
        self.reruns = Reruns(ref, clock)
        """Requests that may have run and go again; to be replaced before the first request."""
        self.blame = Blame()
        """Whose fault resets are."""
        self.queue = Queue(QueueScheduler(), ref, clock, ledger, self.placement)
        """Requests that wait for their turn, or for a backend."""
        self.open_exchanges = 0
        """Gauge: exchanges begun and not finished."""
        self.misplaced: Callable[[Backend, bytes, bytes], None] = _nobody_cares
        """Told of a backend, a model and a version that it says it does not have ready."""
        self.conduct: ConductSink = _NoConduct()
        """Told how requests fare."""
        self.overtaken = 0
        """Attempts that were slower than the one beside them."""
        self.identity = b""
        """Ours in hop markers; empty: requests get none. To be set before relays are made."""
        self.exiting = False
        """The process shuts down: questions about readiness are answered "Server exiting"."""

    def announce_exit(self) -> None:
        """Answer from now on that we are not ready; requests are still taken."""
        self.exiting = True
        self.pool.announce()

    # Access

    def admit(self, exchange: Exchange, claim: Claim, client: Client) -> None:
        """Let a request pass the gate, whose claim its head has. What it then holds of limits
        is given back when it ends.

        Raises:
            RequestRefused: it may not.
        """
        gate = self.gate
        token = gate.identify(claim)
        if token is not None:
            exchange.token = token.name
        if client.is_trusted_proxy:
            address = gate.address(claim, client)
            if address != client.address:
                exchange.client = str(address)
        exchange.permit = gate.admit(claim, token, client, self.clock())

    # Attempts

    def place(
        self, exchange: Exchange, make: Make[AnyAttempt], now: float | None = None
    ) -> AnyAttempt | None:
        """Choose a backend and begin an attempt there: it is in flight from now on.

        Args:
            exchange: to be placed.
            make: makes the attempt.
            now: the time, where the caller has it.

        Returns:
            None when it waits: its `go_on` or `refuse` is called then, unless it is over before.

        Raises:
            RequestRefused: no backend is eligible, all are full, memory is short, or it is a step
                of a sequence that cannot go on.
        """
        # HOT PATH (benchmarks/load). Counts are bumped here on slots instead of by methods of
        # Backend and Port: two calls fewer per request. `begin_attempt` is the reference.
        if self._ledger.held >= self._ledger.short_at and not _has_turn(exchange):
            raise RequestRefused(Reason.MEMORY, "load balancer is out of memory for requests")
        particulars = exchange.particulars
        if particulars is None and not exchange.tried:
            picker = self.pool.current.placements[exchange.protocol].picker
            if picker is None:
                self._hold(exchange, now)
                return None
            backend = picker.pick()
            if backend is None:
                raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        else:
            if now is None:
                now = self.clock()
            backend = self._choose(exchange, now)
            if backend is None:
                return None
        port = backend.ports[exchange.protocol] or backend.port(exchange.protocol)
        backend.in_flight += 1
        port.in_flight += 1
        port.attempts += 1
        if now is None:
            now = self.clock()
        attempt = make(exchange, backend, port, now)
        if particulars is not None:
            attempt.queued = particulars.queued
        exchange.attempt = attempt
        exchange.backend = backend
        if exchange.attempts:
            exchange.attempts += 1
        else:
            exchange.attempts = 1
            exchange.placed_at = now
        return attempt

    def begin_attempt(
        self, exchange: Exchange, make: Make[AnyAttempt], backend: Backend, now: float
    ) -> AnyAttempt:
        """As `place`, at a backend that was chosen already: one more stream of a call."""
        attempt = self._begin(exchange, make, backend, now)
        exchange.attempt = attempt
        exchange.backend = backend
        exchange.attempts += 1
        if exchange.attempts == 1:
            exchange.placed_at = now
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
            exchange: it becomes its `attempt` only by `overtake`.
            make: makes the attempt.
            now: the time.

        Raises:
            RequestRefused: no other backend can take it now.
        """
        if self._ledger.is_short:
            raise RequestRefused(Reason.MEMORY, "load balancer is out of memory for requests")
        here = exchange.backend
        particulars = exchange.particulars
        queued = None
        terms = None
        if particulars is not None and particulars.queued is not None:
            queued = particulars.queued.beside()
            if queued is not None:
                terms = self.queue.terms.find(exchange, particulars)
        if queued is not None and terms is not None:
            tried = () if here is None else (here,)
            backend: Backend | None = self.queue.beside(queued, terms, tried, now)
        else:
            queued = None
            placement = self.placement(exchange)
            others = tuple(each for each in placement.eligible if each is not here)
            if not others:
                raise RequestRefused(Reason.NO_BACKEND, _NO_BACKEND)
            backend = placement.policy.build(self.reruns.spread(others)).pick()
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        attempt = self._begin(exchange, make, backend, now)
        attempt.queued = queued
        exchange.hedge = attempt
        return attempt

    def overtake(self, exchange: Exchange) -> None:
        """The attempt beside the first is the first to answer, and takes its place. The one that
        was overtaken is to be ended before the exchange is placed again: its ticket is that of
        the exchange."""
        first, hedge = exchange.attempt, exchange.hedge
        assert hedge is not None
        if first is not None:
            exchange.tried = (*exchange.tried, first.backend)
        exchange.attempt, exchange.hedge = hedge, None
        self.overtaken += 1
        exchange.backend = hedge.backend
        exchange.attempts += 1

    def placement(self, exchange: Exchange) -> Placement:
        """The backends that may get a request, with all that is known of it."""
        snapshot = self.pool.current
        protocol = exchange.protocol
        placement = snapshot.placements[protocol]
        particulars = exchange.particulars or _NO_PARTICULARS
        route = snapshot.routes.get(exchange.model)
        if route is not None:
            special = route.versions.get(particulars.version, route.placements)
            if special is not None:
                placement = special[protocol]
        for region in particulars.regions:
            owners = snapshot.regions.get(region)
            if owners is not None:
                both = tuple(b for b in placement.eligible if b in owners[protocol].eligible)
                # With none left the backend's own word about the region is the answer.
                if both:
                    placement = Placement(both, placement.policy.build(both), placement.policy)
        return placement

    def _hold(self, exchange: Exchange, now: float | None) -> None:
        """No backend is eligible: wait for one, if that is allowed.

        Raises:
            RequestRefused: it is not.
        """
        now = self.clock() if now is None else now
        if not self.queue.may_hold(exchange, now):
            raise RequestRefused(Reason.NO_BACKEND, _NO_BACKEND)
        self.queue.hold(exchange, now)

    def _take_turn(
        self, exchange: Exchange, particulars: Particulars, queued: Queued, now: float
    ) -> Backend | None:
        """As `place` for what may have to wait for its turn. None also where its model is not
        scheduled any more: then it has no ticket."""
        if queued.turn is not None:
            kept, queued.turn = queued.turn, None
            queued.is_under_way = True
            return kept
        terms = self.queue.terms.find(exchange, particulars)
        if terms is None:
            queued.ticket = None
            return None
        if exchange.tried:
            self.reruns.check(exchange)
            if self._is_left_by_all(exchange, terms.placement):
                self._hold(exchange, now)
                return None
        if terms.trial is not None:
            backend = terms.trial.take()
            if backend is not None:
                return backend
        avoided = self.reruns.avoided(exchange, terms.eligible)
        return self.queue.offer(exchange, queued, terms, now, avoided)

    def _home(self, exchange: Exchange, now: float) -> Backend | None:
        """The backend of a step of a sequence; None leaves it to the policy."""
        route = self.pool.current.routes.get(exchange.model)
        facts = None if route is None else route.facts
        return self.steps.place(exchange, self.placement(exchange), facts, now)

    def _choose(self, exchange: Exchange, now: float) -> Backend | None:
        """As `place` for what needs a second look."""
        # HOT PATH (benchmarks/bench_schedule.py). What is scheduled, and was nowhere yet, takes no
        # call more; `_take_turn` is the reference.
        particulars = exchange.particulars
        if particulars is not None:
            queued = particulars.queued
            if queued is not None:
                if queued.turn is None and not exchange.tried:
                    terms = self.queue.terms.find(exchange, particulars)
                    if terms is not None and terms.trial is None:
                        return self.queue.offer(exchange, queued, terms, now)
                chosen = self._take_turn(exchange, particulars, queued, now)
                if chosen is not None or queued.ticket is not None:
                    return chosen
            elif particulars.step is not None:
                home = self._home(exchange, now)
                if home is not None:
                    return home
        placement = self.placement(exchange)
        picker = placement.picker
        if exchange.tried:
            self.reruns.check(exchange)
            if self._is_left_by_all(exchange, placement):
                self._hold(exchange, now)
                return None
            picker = self._rest(exchange, placement)
        if picker is None:
            self._hold(exchange, now)
            return None
        backend = picker.pick()
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, _ALL_FULL)
        return backend

    def _rest(self, exchange: Exchange, placement: Placement) -> Picker | None:
        """Picks among those that have not failed a request yet."""
        rest = tuple(b for b in placement.eligible if b not in exchange.tried)
        # With none left `may_retry` let it through: the same will do on a fresh connection.
        rest = self.reruns.spread(rest or placement.eligible)
        return placement.policy.build(rest) if rest else None

    def attempt_ended(
        self, attempt: Attempt, outcome: Outcome, code: int = 0, now: float | None = None
    ) -> None:
        """Take an attempt off its backend and count how it ended. Idempotent.

        Args:
            attempt: that is over.
            outcome: how it ended.
            code: HTTP or gRPC status when it was answered.
            now: the time, where the caller has it.
        """
        # HOT PATH (benchmarks/load). Same reason as `place`.
        if attempt.outcome is not None:
            return
        attempt.outcome = outcome
        exchange = attempt.exchange
        backend = attempt.backend
        port = attempt.port
        backend.in_flight -= 1
        port.in_flight -= 1
        if exchange.finished and attempt is exchange.attempt:
            exchange.attempt = None  # they point at each other
            if exchange.permit is not None:
                exchange.permit.release()
        if now is None:
            now = self.clock()
        particulars = exchange.particulars
        if particulars is not None and particulars.step is not None:
            self.steps.ended(attempt, particulars, outcome, code, now)
        if attempt.underway is not None:
            attempt.underway.close(now)
        if attempt.queued is not None:
            self.queue.ended(exchange.protocol, attempt.queued, outcome, code, now)
        if outcome is _ANSWERED:
            if exchange.suspicion is not None:
                self._tell_of_mended(exchange, code, now)
            codes = port.codes
            codes[code] = codes.get(code, 0) + 1
            took = now - attempt.began_at
            latency = port.latency
            latency.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
            latency.sum += took
            if backend.reports_due:
                self._tell_of_answer(attempt, code, now)
            return
        label = OUTCOME_REASONS[outcome].value
        port.failures[label] = port.failures.get(label, 0) + 1
        if attempt is exchange.attempt or outcome is not Outcome.OVERTAKEN:
            exchange.tried = (*exchange.tried, backend)
        if attempt is not exchange.attempt and outcome in LOSSES:
            self.reruns.lost_beside(attempt, now)
        self._outcomes.report(backend, exchange.protocol, outcome, now)
        self.tell_of_failure(attempt, outcome, now)

    def stop(self, exchange: Exchange, outcome: Outcome) -> None:
        """Whatever ends an exchange ends its attempt, if one is under way, or else its waiting."""
        attempt = exchange.attempt
        if attempt is not None and attempt.outcome is None:
            self.attempt_ended(attempt, outcome)
        else:
            self.queue.leave(exchange)

    def answered_whole(
        self, attempt: Attempt, status: int, now: float, *, are_bytes_counted: bool = False
    ) -> None:
        """An attempt is answered, and the client has the answer: both at once.

        Args:
            attempt: it is under way, no step of a sequence, and its exchange without permit. If it
                has a ticket, `Queue.ended` is to be called after this.
            status: gRPC or HTTP status of the answer.
            now: the time.
            are_bytes_counted: the port has those of request and answer already.
        """
        # HOT PATH (benchmarks/bench_http2_relay.py). `attempt_ended` and `finish` in one for the
        # common unary call; those are the reference.
        exchange = attempt.exchange
        port = attempt.port
        backend = attempt.backend
        attempt.outcome = _ANSWERED
        backend.in_flight -= 1
        port.in_flight -= 1
        if not are_bytes_counted:
            port.bytes_sent += exchange.bytes_in
            port.bytes_received += exchange.bytes_out
        if exchange.suspicion is not None:
            self._tell_of_mended(exchange, status, now)
        codes = port.codes
        codes[status] = codes.get(status, 0) + 1
        took = now - attempt.began_at
        latency = port.latency
        latency.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
        latency.sum += took
        if backend.reports_due:
            self._tell_of_answer(attempt, status, now)
        exchange.finished = True
        self.open_exchanges -= 1
        exchange.ended_at = now
        self.requests.finished(exchange)
        exchange.attempt = None

    # How requests fare

    def answered_with_error(self, attempt: Attempt, code: int, text: str) -> bool:
        """The backend answers with an error. To be called before `attempt_ended`.

        Args:
            attempt: that is answered so.
            code: HTTP or gRPC status.
            text: of the error, as far as it is known.

        Returns:
            Whether it says that the backend is broken, so that another one may do better.
        """
        exchange = attempt.exchange
        if attempt.outcome is not None or exchange.operation.kind not in _ERRING:
            return False
        fault = fault_of_answer(exchange.protocol, code, text)
        if fault is None or (fault is Fault.ERROR and self._has_no_choice(exchange)):
            return False
        now = self.clock()
        took = now - attempt.began_at
        self.conduct.failed(attempt.backend, exchange.model, fault, took, now)
        attempt.erred = True
        return fault is Fault.DEVICE

    def answered_first(self, attempt: Attempt) -> None:
        """A stream has good answers, the first one or since there was an error."""
        exchange = attempt.exchange
        if attempt.backend.reports_due and not self._has_no_choice(exchange):
            now = self.clock()
            took_s = (attempt.first_byte_at or now) - attempt.began_at
            self.conduct.answered(attempt.backend, exchange.model, took_s, now)

    def _tell_of_answer(self, attempt: Attempt, code: int, now: float) -> None:
        exchange = attempt.exchange
        if self._is_judged(exchange) and _is_good(exchange, code) and not attempt.erred:
            took_s = (attempt.first_byte_at or now) - attempt.began_at
            self.conduct.answered(attempt.backend, exchange.model, took_s, now)

    def tell_of_failure(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt failed: tell those who judge backends, if it speaks against this one."""
        exchange = attempt.exchange
        if not self._is_judged(exchange):
            return
        took = now - attempt.began_at
        fault = _FAULTS.get(outcome)
        if outcome in _PERHAPS_THE_REQUEST[exchange.protocol] and not attempt.first_byte_at:
            self.blame.suspect(attempt, fault, took, now)
        elif fault is not None:
            self.conduct.failed(attempt.backend, exchange.model, fault, took, now)
        elif outcome in _ABANDONED and not attempt.first_byte_at:
            self.conduct.abandoned(attempt.backend, exchange.model, took, now)

    def tell_of_refusal(self, attempt: Attempt) -> None:
        """A backend refuses a request, and says that it did not look at it. One that does so now
        and then is busy; one that refuses most is broken, and who judges backends tells the two
        apart."""
        exchange = attempt.exchange
        if attempt.outcome is None and self._is_judged(exchange):
            now = self.clock()
            took = now - attempt.began_at
            self.conduct.failed(attempt.backend, exchange.model, Fault.ERROR, took, now)

    def _tell_of_mended(self, exchange: Exchange, code: int, now: float) -> None:
        """A backend answers what another one has reset, before or beside it."""
        if _is_good(exchange, code):
            self._accuse(exchange, self.blame.of_answered(exchange), now)

    def _accuse(self, exchange: Exchange, found: Suspicion | None, now: float) -> None:
        if found is not None and found.backend is not None and found.fault is not None:
            self.conduct.failed(found.backend, exchange.model, found.fault, found.took_s, now)

    def _is_judged(self, exchange: Exchange) -> bool:
        """Whether its end tells how a backend fares."""
        return exchange.operation.kind in _JUDGED and not self._has_no_choice(exchange)

    @staticmethod
    def _has_no_choice(exchange: Exchange) -> bool:
        """Whether it could not have gone elsewhere: then nothing can be compared."""
        particulars = exchange.particulars
        return particulars is not None and bool(particulars.step or particulars.regions)

    def connection_lost(self, backend: Backend, protocol: AppProtocol) -> None:
        """A connection without requests was lost: the control plane may want to know why."""
        self._outcomes.report(backend, protocol, Outcome.LOST, self.clock())

    def may_retry(
        self, exchange: Exchange, outcome: Outcome, *, body_retained: bool, response_begun: bool
    ) -> bool:
        """Whether an exchange whose attempt just ended, or will, may be placed again, see
        `go_again`.

        To be asked once about an attempt: what may have run is taken out of a budget, and what may
        not go again leaves nobody to tell whose fault it was.
        """
        if self._may_retry(
            exchange, outcome, body_retained=body_retained, response_begun=response_begun
        ):
            return True
        now = self.clock()
        self._accuse(exchange, self.blame.of_failed(exchange, now), now)
        return False

    def _may_retry(
        self, exchange: Exchange, outcome: Outcome, *, body_retained: bool, response_begun: bool
    ) -> bool:
        ran = REPLAY_TABLE[outcome].ran
        if exchange.attempts >= self.max_attempts and not (
            ran is Ran.NO and self._is_patient(exchange)
        ):
            return False
        verdict = decide(
            outcome,
            may_run_twice=exchange.may_run_twice,
            body_retained=body_retained,
            response_begun=response_begun,
        )
        if verdict is Verdict.FAIL or not self._has_where_to_go(exchange, outcome):
            return False
        return verdict is Verdict.REPLAY or self.reruns.may(exchange, outcome)

    def go_again(self, exchange: Exchange, outcome: Outcome, place: Callable[[], None]) -> None:
        """Have an exchange placed again: at once if it did not run, else a little later.

        Args:
            exchange: `may_retry` allowed it.
            outcome: of the attempt that ended.
            place: places it; is not called once it is finished.
        """
        if REPLAY_TABLE[outcome].ran is Ran.NO:
            place()
        else:
            self.reruns.later(exchange, place)

    def _is_left_by_all(self, exchange: Exchange, placement: Placement) -> bool:
        """Whether none would take it, and it may wait until one does."""
        return all(each in exchange.tried for each in placement.eligible) and self._is_patient(
            exchange
        )

    def _is_patient(self, exchange: Exchange) -> bool:
        """Whether it may wait for a backend that takes it."""
        particulars = exchange.particulars
        has_step = particulars is not None and particulars.step is not None
        return not has_step and self.queue.may_hold(exchange, self.clock())

    def _has_where_to_go(self, exchange: Exchange, outcome: Outcome) -> bool:
        if outcome in _SAME_BACKEND_WILL_DO or self._is_patient(exchange):
            return True
        step = exchange.particulars.step if exchange.particulars else None
        if step is not None:
            home = self.steps.home(step)
            if home is not None or self.steps.table.is_lost(step.key):
                # Only a START can have been placed elsewhere meanwhile.
                return home is not None and home not in exchange.tried
        eligible = self.placement(exchange).eligible
        here = exchange.backend
        return any(each is not here and each not in exchange.tried for each in eligible)

    def goes_elsewhere(self, exchange: Exchange, meaning: Meaning, *, body_retained: bool) -> bool:
        """Whether another backend is to be asked, since this one says that it cannot serve it.

        Args:
            exchange: whose attempt was answered with an error; nothing of it went to the client.
            meaning: of that error.
            body_retained: every byte of the request's body is still held.
        """
        backend = exchange.backend
        particulars = exchange.particulars or _NO_PARTICULARS
        if backend is None:
            return False
        step = particulars.step
        if meaning is Meaning.NO_SEQUENCE:
            if particulars.pin is not None:
                self.steps.table.unknown(particulars.pin)
            may_search = step is not None and self.steps.may_search(step)
            return may_search and body_retained and self._has_others(exchange, backend)
        if meaning in _MODEL_IS_ELSEWHERE:
            self.misplaced(backend, exchange.model, particulars.version)
            if step is not None:
                # There is none there; STARTs of what nobody has must not fill the table.
                self.steps.table.forget(step.key, backend)
        if (
            not body_retained
            or exchange.operation.kind not in _MOVABLE
            or (step is not None and not step.is_start)
        ):
            return False
        if meaning is Meaning.UNKNOWN_MODEL:
            snapshot = self.pool.current
            route = snapshot.routes.get(exchange.model)
            if snapshot.knows_all and (route is None or not route.is_ready):
                return False  # nobody has it
        return self._has_others(exchange, backend)

    def _has_others(self, exchange: Exchange, backend: Backend) -> bool:
        """Whether there is a backend that was not asked yet, and an attempt left."""
        if exchange.attempts >= self.max_attempts:
            return False
        eligible = self.placement(exchange).eligible
        return any(other is not backend and other not in exchange.tried for other in eligible)

    # Requests

    def begin(self, exchange: Exchange) -> None:
        """Count an exchange as open. Its head is complete."""
        self.open_exchanges += 1

    def finish(
        self, exchange: Exchange, reason: Reason | None = None, now: float | None = None
    ) -> None:
        """The client's side of an exchange is over: log and count it. Idempotent.

        The attempt may go on (a Triton computes although its client left) and ends by itself.
        """
        if exchange.finished:
            return
        exchange.finished = True
        self.open_exchanges -= 1
        # What still runs on a backend is still one of its client's requests.
        if exchange.permit is not None and not exchange.is_under_way:
            exchange.permit.release()
        if reason is not None:
            exchange.reason = reason
        exchange.ended_at = self.clock() if now is None else now
        self.requests.finished(exchange)
        if not exchange.is_under_way:
            exchange.attempt = None  # they point at each other
