"""What the scheduler and the relays exchange: tickets, plans and refusals.

A *model queue* is one version of one model as requests name it. A *model backend* is that model on
one backend. A request of a scheduled model has a `Ticket`. It begins at once, is queued in its
model queue, or is refused. It is bound to a backend only when it begins there.

`lb.balancing.scheduler.Scheduler` says how to use them. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final

from lb.domain.backend import Backend

NO_DEADLINE: Final = float("inf")


class RefusalReason(Enum):
    """Why a request is not run."""

    FULL = "full"
    """The queue is full, and no request of a lower priority is in it."""
    LATE = "late"
    """The request cannot end before its deadline."""
    SHED = "shed"
    """The request was queued, and had to make room for one of a higher priority."""
    EXPIRED = "expired"
    """The request was queued for as long as its plan allows."""


class Ending(Enum):
    """How the attempt of a ticket ended, as far as its cost is concerned."""

    GOOD = "good"
    """With a good answer: its time is learnt from."""
    FAILED = "failed"
    """With an error that speaks against the backend, which counts as slower for a while."""
    NEITHER = "neither"
    """Cancelled, refused as invalid, and the like: nothing is learnt from it."""


class Wait(StrEnum):
    """Why a ticket is queued: a field of the access log."""

    NONE = ""
    LIMIT = "limit"
    """Every model backend that it may use is full."""
    FASTER = "faster"
    """A model backend has room, but a full one will end it sooner."""
    RESERVED = "reserved"
    """Free slots are reserved for the highest priority."""
    NO_BACKEND = "no_backend"
    """No backend is eligible."""


_NO_WAIT: Final = Wait.NONE


class Order(Enum):
    """How priorities share the backends."""

    STRICT = "strict"
    """A lower priority gets what the higher ones leave."""
    WEIGHTED = "weighted"
    """Each priority gets a part in proportion to its weight, while it has requests."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests of a model may be in flight at one backend, and how it executes them."""

    concurrency: int = 0
    """The limit. Where it is adaptive, the number to begin with. 0: no limit."""
    is_auto: bool = False
    """`concurrency` is what executes at once. The scheduler adds requests that keep the backend
    busy while an answer and the next request travel, and that fill a batch while another one
    executes."""
    is_adaptive: bool = False
    """The limit is found by measuring."""
    is_shared: bool = False
    """All requests there are executed side by side, any number of them."""
    instances: int = 1
    """Executions that run at once."""
    max_batch: int = 0
    """Rows that a dynamic batcher puts into one execution. 0: requests are executed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How requests of a model queue wait."""

    max_waiting: int = 1000
    """Tickets that are queued at once. Beyond that the lowest priority is shed."""
    max_wait_s: float = NO_DEADLINE
    """No request is queued for longer, in seconds."""
    order: Order = Order.STRICT
    weights: Mapping[int, float] = field(default_factory=dict)
    """Weights of priorities, for WEIGHTED. Without one a priority has half the weight of the next
    higher one."""
    reserved: float = 0.0
    """The part of all slots that is for priority 0 alone, from 0 to below 1."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of tenants within a priority. Without one a tenant has 1."""
    has_tenants: bool = False
    """Requests may name tenants."""
    max_starve_s: float = 30.0
    """Seconds after its arrival from which a request passes every priority, every other turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueuePlan:
    """All that is configured about one model queue.

    Plans are compared by identity: make one per snapshot.
    """

    limits: Mapping[Backend, Capacity]
    default: Capacity = Capacity()
    """The capacity of backends that `limits` does not name."""
    rules: QueueRules = QueueRules()

    def limit(self, backend: Backend) -> Capacity:
        """The capacity of one model backend."""
        return self.limits.get(backend, self.default)


class RequestClass:
    """What requests have in common that ask for one version of a scheduled model and may use the
    same backends. They are handled together, so make one per snapshot."""

    __slots__ = ("eligible", "eligible_set", "model", "model_queue", "plan", "version")

    def __init__(
        self, model: bytes, version: bytes, plan: QueuePlan, eligible: tuple[Backend, ...]
    ) -> None:
        self.model = model
        self.version = version
        """As requests name it; empty for any."""
        self.plan = plan
        self.eligible = eligible
        """The backends that they may use."""
        self.model_queue: Any = None
        """The scheduler's `ModelQueue`, and the `EligibleSet` in it, once they were looked up."""
        self.eligible_set: Any = None


class Ticket:
    """One request that is to be placed. Attributes below `tried` are written by the scheduler."""

    __slots__ = (
        "after",
        "arrived_at",
        "backend",
        "began_at",
        "deadline",
        "eligible_set",
        "expected_s",
        "is_waiting",
        "key",
        "model_backend",
        "number",
        "position",
        "priority",
        "queued_at",
        "refused",
        "request_class",
        "rows",
        "size",
        "tenant",
        "tried",
        "wait",
        "work_s",
    )  # fmt: skip

    # Set by the scheduler when they first mean something: most tickets need few of them.
    began_at: float
    expected_s: float
    """Seconds that it was expected to take when it began."""
    refused: ScheduleRefused | None
    """Why it is not run; set on tickets that `next_refused` gives."""
    number: int
    """Its place among all tickets that were offered."""
    key: float
    """When it counts as due: its place among the queued tickets of its tenant."""
    work_s: float
    """Seconds of execution that it was counted with."""
    after: int
    """The number of the end at its model backend after which it executes. Less than 0: the negative
    of that number, since it began beyond the limit."""
    queued_at: float
    """When it was queued. It may have arrived long before, and have failed somewhere."""
    eligible_set: Any
    """The `EligibleSet` in whose queue it is."""
    model_backend: Any
    """The `ModelBackend` where it began. After a change of the plan another one may be in that
    place. None: its request was given up as lost."""

    # Documented here: between the lines of the constructor each text would cost an instruction.
    rows: int
    """Batch dimension of the first input; 1 where it is not known."""
    size: int
    """Bytes of the request's body, as far as they are known."""
    deadline: float
    """When its answer is due."""
    priority: int
    """0 is the highest."""
    tried: tuple[Backend, ...]
    """Backends where it has failed. They are used only when no other one is eligible."""
    backend: Backend | None
    """Where it began; None while it is queued."""
    position: int
    """How many tickets were queued before it; 0 where it began at once or was first."""
    wait: Wait
    """Why it was queued at first."""
    is_waiting: bool
    """It is queued. Until it is dropped nothing else that is set at once may be changed."""

    def __init__(
        self,
        request_class: RequestClass,
        now: float,
        rows: int = 1,
        size: int = 0,
        deadline: float = NO_DEADLINE,
        priority: int = 0,
    ) -> None:
        self.request_class = request_class
        self.arrived_at = now
        self.rows = rows
        self.size = size
        self.deadline = deadline
        self.priority = priority
        self.tenant = ""
        self.tried = ()
        self.backend = None
        self.position = 0
        self.wait = _NO_WAIT
        self.is_waiting = False

    @property
    def model(self) -> bytes:
        """See `RequestClass`."""
        return self.request_class.model

    @property
    def version(self) -> bytes:
        """See `RequestClass`."""
        return self.request_class.version

    @property
    def plan(self) -> QueuePlan:
        """See `RequestClass`."""
        return self.request_class.plan

    @property
    def eligible(self) -> tuple[Backend, ...]:
        """See `RequestClass`."""
        return self.request_class.eligible

    def hedge(self) -> Ticket:
        """Make a ticket for the same request, which is to run a second time beside the first."""
        other = Ticket(
            self.request_class, self.arrived_at, self.rows, self.size, self.deadline, self.priority
        )
        other.tenant, other.position, other.wait = self.tenant, self.position, self.wait
        return other


class ScheduleRefused(Exception):
    """Raised for a request that is not run. The caller turns it into an answer of its protocol."""

    def __init__(self, refusal: RefusalReason, retry_after_s: float) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        """Seconds until there will be room, as an estimate."""


POSITION_BOUNDS: Final = tuple([(1 << power) - 1 for power in range(17)])
"""Upper bounds of the histograms of positions: 0, 1, 3, 7 ... 65,535."""


class PositionHistogram:
    """How many requests were queued before each one that was queued, as plain integers."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(POSITION_BOUNDS) + 1)
        """Counts by bucket, not cumulative. The last bucket has everything above."""
        self.sum = 0

    def add(self, position: int) -> None:
        """Count a request that is queued behind so many others."""
        self.counts[min(position.bit_length(), len(POSITION_BOUNDS))] += 1
        self.sum += position


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBackendView:
    """What the admin API and the metrics show of a model backend."""

    model: bytes
    version: bytes
    backend: Backend
    in_flight: int
    limit: int
    """Requests that may be in flight; 0 is no limit."""
    expected_s: float
    """Seconds that a request of one row takes when nothing else runs; 0 where it is not known."""
    row_s: float
    """Seconds that each further row adds."""
    learnt: int
    """Executions that the time was learnt from. A time without any is what the backend says."""
    slowed: float = 1.0
    """By how much requests count as slower there because other clients use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQueueView:
    """What the admin API and the metrics show of a model queue."""

    model: bytes
    version: bytes
    waiting: Mapping[int, int]
    """Queued tickets by priority."""
    oldest_s: float
    """Seconds for which the oldest one has been queued."""
