"""Steps of sequences on their way through the dispatcher: where they go, and what failed ones mean.

Between `place` and `ended` a step is counted exactly once on its pin, as its attempt is on its
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from lb.balancing.sequences import Affinity, SequenceTable, lost_text, sequence_text
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import Placement, PoolRef
from lb.domain.retry import REPLAY_TABLE, Ran
from lb.domain.sequence import SequenceStep
from lb.net.timers import TimerWheel
from lb.proxy.exchange import Attempt, Exchange, RoutingHints
from lb.settings.model import Settings
from lb.wire.grpc.status import GrpcStatus

_SWEEP_S: Final = 1.0
_HTTP_GOOD: Final = range(200, 300)
_REFUSED: Final = (
    frozenset(range(400, 500)) - {408, 429, 499},
    frozenset(
        {
            GrpcStatus.INVALID_ARGUMENT,
            GrpcStatus.NOT_FOUND,
            GrpcStatus.PERMISSION_DENIED,
            GrpcStatus.FAILED_PRECONDITION,
            GrpcStatus.OUT_OF_RANGE,
            GrpcStatus.UNIMPLEMENTED,
            GrpcStatus.UNAUTHENTICATED,
        }
    ),
)
"""By protocol: codes that say that the request is wrong, so most likely it did not run. Codes of a
timeout, a limit or a cancellation say nothing about that."""
_SWEPT: Final = 5000
"""Sequences that one sweep forgets at most, which takes about 6 ms."""
_MAX_SEQUENCES: Final = 1_000_000
"""Remembered unless told otherwise."""
HASH_BALANCE_FACTOR: Final = 1.25
"""With rendezvous hashing: times its share of a model's sequences that a backend may have before
the next one by the hash is taken (docs/decisions/0033-replicas-and-scaling.md)."""
UNKNOWN_IDLE_S: Final = 60.0
"""Patience with sequences of a model whose configuration has not been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRules:
    """How sequences are bound to backends, see `SequenceTable`."""

    limit: int = _MAX_SEQUENCES
    affinity: Affinity = Affinity.LEAST_LOADED
    bound: float = 0.0


def sequence_rules(settings: Settings) -> SequenceRules:
    """Read from settings how sequences are bound to backends."""
    sequences = settings.sequences
    return SequenceRules(
        limit=sequences.max_open,
        affinity=Affinity(sequences.affinity.value),
        bound=HASH_BALANCE_FACTOR,
    )


class Steps:
    """Brings exchanges and the table of sequences together."""

    def __init__(self, rules: SequenceRules | None = None) -> None:
        self.rules = rules = rules or SequenceRules()
        self.table = SequenceTable(limit=rules.limit, affinity=rules.affinity, bound=rules.bound)
        self._backends: tuple[Backend, ...] = ()
        """The backends of the pool when it was last looked at."""

    def configure(self, rules: SequenceRules) -> None:
        """Go by other rules from now on; sequences that run stay where they are."""
        self.rules = rules
        self.table.limit = rules.limit
        self.table.affinity = rules.affinity
        self.table.bound = rules.bound

    def keep_swept(self, timers: TimerWheel, clock: Callable[[], float], pool: PoolRef) -> None:
        """Every second until the timers are closed, forget what has expired, and what was learnt of
        backends that have left the pool."""

        def sweep() -> None:
            self.table.sweep(clock(), _SWEPT)
            backends = pool.current.backends
            if self._backends is not backends:
                self._backends = backends
                self.table.keep_only(frozenset(backends))

        timers.every(_SWEEP_S, sweep)

    def place(
        self,
        exchange: Exchange,
        hints: RoutingHints,
        step: SequenceStep,
        placement: Placement,
        facts: ModelFacts | None,
        now: float,
    ) -> Backend | None:
        """The backend of a step; None leaves it to the policy.

        Args:
            exchange: to be placed.
            hints: of the exchange; they get the pin of the step.
            step: that it is.
            placement: who may get new requests like it.
            facts: of its model; None where nothing is known of it.
            now: monotonic seconds.

        Raises:
            RequestRefused: the sequence is lost, its backend cannot take the step, or the model
                knows no such ids.
        """
        check_id(step, facts)
        backend, pin = self.table.place(
            step, placement, idle_of(facts), now, exchange.tried, slots=slots_of(facts)
        )
        if backend is None or pin is None:
            return backend
        refused = refusal(step, backend, exchange.protocol)
        if refused is not None:
            self.table.ended(step, pin, pin.starts, now, surely_not_run=True)
            raise refused
        hints.pin = pin
        hints.starts = pin.starts
        return backend

    def ended(
        self,
        attempt: Attempt,
        hints: RoutingHints,
        outcome: Outcome,
        code: int,
        now: float,
    ) -> None:
        """The attempt at a step is over."""
        pin, step = hints.pin, hints.step
        if pin is None or step is None:
            return
        is_good = outcome is Outcome.ANSWERED and (
            not code if attempt.exchange.protocol is AppProtocol.GRPC else code in _HTTP_GOOD
        )
        self.table.ended(
            step,
            pin,
            hints.starts,
            now,
            surely_not_run=REPLAY_TABLE[outcome].ran is Ran.NO,
            is_refused=outcome is Outcome.ANSWERED and code in _REFUSED[attempt.exchange.protocol],
            began_at=attempt.began_at if is_good else 0.0,
        )
        hints.pin = None

    def home(self, step: SequenceStep) -> Backend | None:
        """The backend that a step must go to; None where it is free to choose."""
        return None if step.is_start else self.table.backend_of(step.key)

    def may_search(self, step: SequenceStep) -> bool:
        """Whether a step that a backend says it knows nothing of may go to the next one: another
        replica of the balancer may have started the sequence there."""
        return (
            not step.is_start
            and self.table.affinity is Affinity.RENDEZVOUS
            and self.table.backend_of(step.key) is None
        )

    def failure(
        self, step: SequenceStep, backend: Backend, reason: Reason, text: str
    ) -> tuple[Reason, str]:
        """What to tell the client of a step that failed at a backend for a reason, and with a text,
        that know nothing of sequences."""
        if not step.is_start and self.table.is_lost(step.key):
            return Reason.SEQUENCE_LOST, f"{lost_text(step.key, backend)} ({text})"
        return reason, f"{sequence_text(step.key)}: {text}"


def check_id(step: SequenceStep, facts: ModelFacts | None) -> None:
    """Let no text stand for a sequence whose model gets the id as a number: a Triton copies it
    there without a look at its type, and may die of it.

    Raises:
        RequestRefused: it does.
    """
    if facts is not None and facts.has_number_ids and isinstance(step.key.id, str):
        raise RequestRefused(
            Reason.SEQUENCE_ID, f"{sequence_text(step.key)}: the model's sequence ids are numbers"
        )


def refusal(
    step: SequenceStep, backend: Backend, protocol: AppProtocol, joined: Collection[Backend] = ()
) -> RequestRefused | None:
    """Why the backend of a sequence cannot take a step; None where it can.

    Args:
        step: of a sequence that runs there.
        backend: where it runs.
        protocol: over which the step came.
        joined: backends that take it without one more request in flight.
    """
    if backend.ports[protocol] is None:
        reason, fault = Reason.NO_BACKEND, f"has no {protocol.label} port"
    elif not (backend.has_room or backend in joined):
        reason, fault = Reason.BACKENDS_FULL, "is at its request limit"
    else:
        return None
    text = f"{sequence_text(step.key)} runs on backend {backend.name}, which {fault}"
    return RequestRefused(reason, text)


def idle_of(facts: ModelFacts | None) -> float:
    """Seconds after which a Triton forgets an idle sequence of a model, as far as is known."""
    if facts is None or facts.is_stateful is None:
        return UNKNOWN_IDLE_S
    return facts.idle_s


def slots_of(facts: ModelFacts | None) -> int:
    """Sequences of a model that one backend runs at once; 0 where that is not known."""
    return 0 if facts is None else facts.slots
