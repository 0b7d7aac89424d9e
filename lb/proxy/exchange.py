"""One request and its response, as the relay holds it: an `Exchange` is the client's half, an
`Attempt` the half of one backend.

An exchange has no attempt while it waits for its turn, one nearly always, more than one where it is
retried or hedged. An attempt ends exactly once, by `Accounts.attempt_ended`.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Final, NamedTuple, Protocol

from lb.access.gate import Permit
from lb.balancing.sequences import Pin
from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.client import address_of_name, key_of_client
from lb.domain.errors import RequestRefused
from lb.domain.fault import Fault
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome, Reason
from lb.domain.schedule import Ticket
from lb.domain.sequence import Question, SequenceStep
from lb.kserve.work import UNSAID
from lb.proxy.request_class import QueueRequestClass
from lb.proxy.request_trace import RequestTrace
from lb.telemetry.record import RequestRecord
from lb.telemetry.spans import FIRST_SPAN
from lb.wire.trace_context import TraceContext

_READ_LATE_S: Final = 0.02
"""What was on the way when a connection was lost may be read so much later."""


class Waiting(Protocol):
    """Goes on with an exchange that waits for its turn, or for a backend. One of the two is called
    once, unless the exchange is over before."""

    def go_on(self) -> None:
        """The waiting is over: have the exchange placed."""
        ...

    def refuse(self, refusal: RequestRefused) -> None:
        """The waiting is over: answer so."""
        ...


class Closing(Protocol):
    """What ends with an attempt."""

    def close(self, now: float) -> None:
        """The attempt is over."""
        ...


class RoutingHints:
    """What beside its protocol and model decides where a request may go. Most have none.

    Requests of a scheduled model that begin alike share one."""

    __slots__ = (
        "is_shared",
        "pin",
        "priority",
        "question",
        "regions",
        "request_class",
        "rows",
        "size",
        "starts",
        "step",
        "version",
    )  # fmt: skip

    def __init__(self, version: bytes = b"", rows: int = 0, priority: int = UNSAID) -> None:
        self.version = version
        """The model's version that it asks for; empty leaves it to the backend."""
        self.rows = rows
        """Batch dimension of a request that is scheduled; 1 where it does not say so. 0: it is not
        scheduled, because of its model or because it is a step."""
        self.priority = priority
        """The parameter of that name: 1 is the highest."""
        self.size = 0
        """Bytes of the request, as far as they are announced. 0: as many as have come."""
        self.is_shared = False
        """They are those of other requests, too: nothing of them changes but the class."""
        self.request_class: QueueRequestClass | None = None
        """The class of the last request that had these hints. It belongs to `RequestClasses`."""
        self.step: SequenceStep | None = None
        """The step of a sequence that it is."""
        self.pin: Pin | None = None
        """Where that sequence runs, while an attempt is under way. It belongs to `Steps`, and so
        does `starts`."""
        self.starts = 0
        self.question: Question | None = None
        """What it has waited for since nobody had started its sequence, as far as was known."""
        self.regions: tuple[bytes, ...] = ()
        """Regions of shared memory that it names, as far as not all backends have them."""

    @property
    def variant(self) -> str:
        """The variant that serves it, behind the name and a slash; empty without one."""
        return ""


class SplitHints(RoutingHints):
    """The hints of a whole batch that was cut."""

    __slots__ = ("parts",)

    def __init__(self, whole: RoutingHints | None, parts: int) -> None:
        if whole is None:
            super().__init__()
        else:
            super().__init__(whole.version, 0, whole.priority)
        self.parts = parts


class Loss(NamedTuple):
    """What a request may have done to servers: the last connection that was lost with it, and
    where it was given up."""

    backend: Backend | None
    """None: no connection was lost."""
    at: float
    began_at: float = 0.0
    """When the attempt began that was lost."""
    deaths: int = 0
    """How often the backend had died when it was lost."""
    doubted: Loss | None = None
    """One before it, of which nobody knew yet whether the server had died, too."""
    left: tuple[tuple[Backend, float], ...] = ()
    """Backends that took too long, and when their attempts began. They may still run it, and die
    of it."""

    def was_fatal(self) -> bool:
        """Whether the server has certainly died, even if another one is in its place by now."""
        backend = self.backend
        return backend is not None and (
            backend.deaths != self.deaths or backend.has_left_since(self.began_at)
        )

    def was_survived(self) -> bool:
        """Whether the server has certainly been there since: it said something, to anybody. True
        also where no connection was lost."""
        if self.backend is None:
            return True
        if self.was_fatal():
            return False  # what was heard since came from its successor
        since = self.at + _READ_LATE_S
        ports = [port for port in self.backend.ports if port is not None]
        return any(max(port.last_byte_at, port.probed_at) > since for port in ports)


class Suspicion(NamedTuple):
    """An attempt that may have been reset because of the request, or because of the backend."""

    backend: Backend | None
    """None: two backends did the same, so it was the request."""
    fault: Fault | None
    """What it is if it was the backend; None where that would be no fault."""
    took_s: float
    attempt: int
    """Which one it was, from 1; 0 for one beside another."""


class Exchange(RequestRecord):
    """A request from its head to its end, and what is known of its client. Protocol relays extend
    it.

    The parts of `Dispatcher` own `attempt`, `backend`, `attempts`, `tried`, `may_have_run`,
    `finished`, `ticket`, `token` and `permit`; the relay sets `hints` before it has the
    exchange placed.
    """

    __slots__ = (
        "attempt",
        "finished",
        "hedge",
        "held_for",
        "held_until",
        "hints",
        "is_part",
        "loss",
        "may_have_run",
        "permit",
        "sent_at",
        "suspicion",
        "ticket",
        "trace",
        "tried",
    )  # fmt: skip

    def __init__(
        self, protocol: AppProtocol, operation: Operation, client: str, started_at: float
    ) -> None:
        self.protocol = protocol
        self.operation = operation
        self.client = client
        self.started_at = started_at
        self.method = self.path = self.model = self.request_id = b""
        self.backend: Backend | None = None
        self.attempt: Attempt | None = None
        """The last one, whether it is under way or over; None before the first."""
        self.hedge: Attempt | None = None
        """One beside it, for which the client waits as well."""
        self.attempts = 0
        self.tried: tuple[Backend, ...] = ()
        """Backends of the attempts that failed."""
        self.may_have_run = False
        """An attempt failed after which nobody can say that the request did not run."""
        self.loss: Loss | None = None
        """The last connection that was lost with it."""
        self.suspicion: Suspicion | None = None
        """Who may be to blame for an attempt that was reset."""
        self.hints: RoutingHints | None = None
        self.ticket: Ticket | None = None
        """Once it was offered to the scheduler. It belongs to the queue."""
        self.placed_at = self.ended_at = self.held_until = self.sent_at = 0.0
        self.bytes_in = self.bytes_out = self.status = 0
        self.grpc_status = -1
        self.reason: Reason | None = None
        self.token = self.held_for = ""
        self.permit: Permit | None = None
        """What it holds of the limits of its client."""
        self.finished = self.is_part = False
        self.trace: RequestTrace | None = None
        """Where it is traced."""

    is_part: bool
    """It is a part of another exchange, which alone is counted and logged."""
    held_until: float
    """When it is given up that waits for any backend; 0.0 where it did not wait yet."""
    sent_at: float
    """When its client had sent all of it; infinite while it still sends. 0.0 where all of it was
    there when it was first placed, unless a variant serves it. Calls that may be streams have no
    such time."""
    held_for: str
    """Why it waited for any backend: `no_backend`, `loading` or `activating`; empty where it did
    not."""

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt is under way."""
        attempt = self.attempt
        return attempt is not None and attempt.outcome is None

    @property
    def whole(self) -> Exchange:
        """The request that the client knows: itself, or what it is a part of."""
        return self

    @property
    def client_key(self) -> Hashable:
        """Tells clients apart that share something: a tenant, where it has told who it is, or an
        address."""
        return self.token or key_of_client(address_of_name(self.client))

    @property
    def client_connection(self) -> Hashable:
        """The connection of its client; None where it is a part, or the client has left."""
        return None

    @property
    def first_span(self) -> int:
        """Number of the span of its first attempt; 0 where none was kept for it."""
        return FIRST_SPAN

    def leave_variant(self) -> bool:
        """Leave its variant, which no backend serves: another one of its name serves it from its
        next placement on. False: there is none."""
        return False

    def retell(self, span: int) -> None:
        """Have the next attempt tell its backend that it is this span of the trace."""

    def took_s(self, at: float) -> float:
        """Find how long it had taken at a time, since its client had sent all of it; 0.0 while the
        client still sends."""
        return max(at - max(self.started_at, self.sent_at), 0.0)

    @property
    def context(self) -> TraceContext | None:
        """The trace context that the request came with; kept only while tracing is on."""
        return None

    @property
    def trace_id(self) -> bytes:
        """See `RequestRecord`."""
        trace = self.whole.trace
        return trace.trace_id if trace is not None else b""

    @property
    def connected_at(self) -> float:
        """See `RequestRecord`."""
        return self.attempt.connected_at if self.attempt is not None else 0.0

    @property
    def first_byte_at(self) -> float:
        """See `RequestRecord`."""
        return self.attempt.first_byte_at if self.attempt is not None else 0.0

    @property
    def may_run_twice(self) -> bool:
        """Whether it can be sent again without harm when it may have run."""
        hints = self.hints
        return self.operation.may_run_twice and (hints is None or hints.step is None)

    @property
    def sequence(self) -> int | str | None:
        """The id of the sequence that it is a step of."""
        hints = self.hints
        return hints.step.key.id if hints and hints.step else None

    @property
    def variant(self) -> str:
        """See `RequestRecord`."""
        return "" if self.hints is None else self.hints.variant

    @property
    def parts(self) -> int:
        """See `RequestRecord`."""
        hints = self.hints
        return hints.parts if isinstance(hints, SplitHints) else 0

    @property
    def queue_position(self) -> int | None:
        """How many waited before it when it joined a queue; None where it did not wait."""
        ticket = self.ticket
        return ticket.position if ticket is not None and ticket.wait.value else None

    @property
    def queue_why(self) -> str:
        """Why it had to wait: for a backend first, then for its turn there; empty where it had
        not."""
        ticket = self.ticket
        return self.held_for or (ticket.wait.value if ticket is not None else "")

    @property
    def deadline(self) -> float:
        """Until when its client waits for the answer, in monotonic seconds; inf: for ever."""
        return inf

    def hint(self, _name: bytes) -> bytes:
        """What a header says that the queue goes by, its name in lower case; empty without it."""
        return b""

    @property
    def is_sent(self) -> bool:
        """Whether all of the request has come, and nothing of an answer has gone to the client."""
        return False

    @property
    def is_uploading(self) -> bool:
        """Whether the client is still sending the request, and nothing but itself holds it up."""
        return False

    @property
    def is_downloading(self) -> bool:
        """Whether its backend has executed it, and its client holds up the response."""
        return False

    def attempt_late(self) -> None:
        """The answer does not begin in time: fail over, if that is allowed and there is another
        backend."""

    def __repr__(self) -> str:
        backend = self.backend.name if self.backend else "-"
        return f"<{type(self).__name__} {self.operation.name} backend={backend}>"


class Attempt:
    """One try of a request at one backend. Protocol relays extend it.

    `Placer` begins it and `Accounts` end it; the relay notes when it was connected and answered.
    Times are monotonic seconds; 0.0 means that it did not happen.
    """

    __slots__ = (
        "backend",
        "began_at",
        "connected_at",
        "erred",
        "exchange",
        "first_byte_at",
        "in_flight_messages",
        "is_set_aside",
        "outcome",
        "port",
        "ticket",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, backend: Backend, port: Port, began_at: float) -> None:
        self.exchange = exchange
        """Whose it is."""
        self.backend = backend
        self.port = port
        self.began_at = began_at
        """It was placed."""
        self.connected_at = self.first_byte_at = 0.0
        self.outcome: Outcome | None = None
        """How it ended; None while it is under way."""
        self.erred = self.is_set_aside = False
        self.ticket: Ticket | None = None
        """What it is counted by, where its model is scheduled; None while it does not count."""
        self.in_flight_messages: Closing | None = None
        """Requests within it, where it is a stream; closed when it is over."""

    erred: bool
    """It failed though it was answered, and those who judge backends know."""
    is_set_aside: bool
    """It counts against no limit, since its client is slow; see `lb.proxy.slow_clients`."""

    @property
    def is_hung(self) -> bool:
        """Whether its backend is silent, or is another process by now; see `Port`."""
        return self.port.is_hung or self.began_at < self.port.left_before

    @property
    def is_given_up(self) -> bool:
        """Whether no answer is waited for any longer; see `Port`."""
        return self.port.is_given_up or self.began_at < self.port.lost_before

    def awaited_since(self) -> float:
        """Find since when its answer is awaited: since it began, or since its client had sent all
        of the request, which may be later. Infinite while the client still sends."""
        return max(self.began_at, self.exchange.sent_at)

    def took_s(self, at: float) -> float:
        """Find how long its backend had taken at a time, without what its client took to send the
        request. An answer that began before that counts from when the attempt began."""
        began_at, sent_at = self.began_at, self.exchange.sent_at
        return at - (sent_at if began_at < sent_at <= at else began_at)

    def may_use(self, model: bytes) -> bool:
        """Whether its backend may run a model for it: that of its request, if it names one."""
        return self.exchange.model in (model, b"")

    def has_used(self, _model: bytes) -> bool:
        """Whether it is a stream that has asked for a model."""
        return False

    def __repr__(self) -> str:
        state = "under way" if self.outcome is None else self.outcome.value
        return f"<{type(self).__name__} {self.backend.name} {state}>"
