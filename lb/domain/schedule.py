"""The seam between who schedules requests and who relays them: tickets, plans and refusals.

A *line* is one version of one model as requests name it; a *model backend* is a model queue on one
backend. A request of a scheduled model has a `Ticket`. It begins at once, waits in the one queue of
its model queue, or is refused. It is bound to a backend only when it begins there.

How to use a `Scheduler` (one for the process, both protocols; nothing in it blocks or awaits):

1. `offer(ticket, now)`. A backend: begin there now. None: it waits. `ScheduleRefused`: answer so.
2. When the attempt of a ticket that began has ended: `complete(ticket, now, ending)`, exactly once.
   The same ticket may then be offered again, with `tried` extended: it keeps its place in time.
3. When a waiting ticket is wanted no more (its client has gone): `drop(ticket)`.
4. After `complete`, `drop`, `follow`, `offer`, and at `wake_at`: call `next_due(now)` until it
   gives None and begin each ticket at `ticket.backend`; then `next_refused(now)` until it gives
   None and answer each with its refusal. Both are one comparison when there is nothing to do. It is
   well to do so once per iteration of the event loop after several `complete`.
5. After a new snapshot: `follow(renew, now)`, which has every waiting ticket's `eligible` renewed.

Who begins a ticket counts it on `Backend.in_flight` before it calls the scheduler again, and takes
it off before `complete`. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured

NO_DEADLINE: Final = float("inf")


class Refusal(Enum):
    """Why a request is not run."""

    FULL = "full"
    """The queue is full, and nothing of a lower priority waits in it."""
    LATE = "late"
    """It cannot end before its deadline."""
    SHED = "shed"
    """It waited, and had to make room for one of a higher priority."""
    EXPIRED = "expired"
    """It waited for as long as its plan lets requests wait."""


class Ending(Enum):
    """How the attempt of a ticket ended, as far as its cost is concerned."""

    GOOD = "good"
    """With a good answer: its time teaches."""
    FAILED = "failed"
    """With an error that speaks against the backend: it counts as slower for a while."""
    NEITHER = "neither"
    """Cancelled, refused as invalid, and the like: it teaches nothing."""


class Wait(Enum):
    """Why a ticket waits: field of the access log."""

    NONE = ""
    LIMIT = "limit"
    """Every model backend that it may use is full."""
    FASTER = "faster"
    """A model backend has room, but a full one will end it sooner."""
    RESERVED = "reserved"
    """What is free is kept for the highest priority."""
    NO_BACKEND = "no_backend"
    """No backend is eligible."""


_NO_WAIT: Final = Wait.NONE


class Order(Enum):
    """How priorities share what there is."""

    STRICT = "strict"
    """A lower one gets what the higher ones leave."""
    WEIGHTED = "weighted"
    """Each has its part, in proportion to the weights, while it has requests."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests of a model queue may be under way at one backend, and how it runs them."""

    concurrency: int = 0
    """At most so many at once; where it is adaptive, the number to begin with; 0 is no limit."""
    is_auto: bool = False
    """`concurrency` is what executes at once; the scheduler adds what keeps the backend busy while
    an answer and the next request travel, and a batch to fill while another one executes."""
    is_adaptive: bool = False
    """`concurrency` follows what is measured."""
    is_shared: bool = False
    """All that is there is worked on at once; nothing is known of how many that may be."""
    instances: int = 1
    """Executions that run side by side."""
    max_batch: int = 0
    """Rows that a dynamic batcher puts into one execution; 0 where requests are run one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How requests of a model queue wait."""

    max_waiting: int = 1000
    """Tickets that wait at once; more are shed, lowest priority first."""
    max_wait_s: float = NO_DEADLINE
    """Nobody waits longer."""
    order: Order = Order.STRICT
    weights: Mapping[int, float] = field(default_factory=dict)
    """Of priorities, for WEIGHTED; those not named halve from one to the next lower one."""
    reserved: float = 0.0
    """Part of what may execute at once that priority 0 alone may use, 0 to 1 (exclusive)."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of tenants within a priority; those not named have 1."""
    max_starve_s: float = 30.0
    """Who has waited longer goes ahead of every priority, every other turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """All that is configured about one model queue. Compared by identity: make it once per
    snapshot."""

    limits: Mapping[Backend, Capacity]
    default: Capacity = Capacity()
    """Of backends that `limits` does not name."""
    rules: QueueRules = QueueRules()

    def limit(self, backend: Backend) -> Capacity:
        """The limit of one model backend."""
        return self.limits.get(backend, self.default)


class Ticket:
    """One request that is to be placed. What stands below `tried` is the scheduler's to write."""

    __slots__ = (
        "after", "backend", "began_at", "came_at", "deadline", "eligible", "expected_s",
        "is_waiting", "joined_at", "key", "model", "model_backend", "number", "plan", "position",
        "priority", "refused", "rows", "size", "tenant", "tried", "version", "wait", "work_s",
    )  # fmt: skip

    # Set by the scheduler when they first mean something: most tickets need few of them.
    began_at: float
    expected_s: float
    """How long it was expected to take from its beginning."""
    refused: ScheduleRefused | None
    """Set on those that `next_refused` gives."""
    number: int
    """Its place among all that came."""
    key: float
    """Its place among those of its tenant that wait: the earlier of two times."""
    work_s: float
    """Execution time that it was counted with."""
    after: int
    """The end in its model backend after which it executes, by number."""
    joined_at: float
    """When it began to wait: it may have come long before, and have failed somewhere."""
    model_backend: object
    """What it began in; the scheduler may have put another one in that place since. None once its
    request was given up as lost."""

    def __init__(
        self, model: bytes, version: bytes, plan: Plan, eligible: tuple[Backend, ...], now: float
    ) -> None:
        self.model = model
        self.version = version
        """As the request names it; empty for any."""
        self.plan = plan
        self.eligible = eligible
        """The very tuple of the placement: tickets with the same one are handled together."""
        self.came_at = now
        self.rows = 1
        """Batch dimension of the first input; 1 where it is not known."""
        self.size = 0
        """Bytes of the request's body, as far as they are known."""
        self.priority = 0
        """0 is the highest."""
        self.tenant = ""
        self.deadline = NO_DEADLINE
        """When its answer is due."""
        self.tried: tuple[Backend, ...] = ()
        """Where it has failed: to be used only when nothing else is eligible."""
        self.backend: Backend | None = None
        """Where it began; None while it waits."""
        self.position = 0
        """How many waited in its queue when it joined; 0 where it began at once or was first."""
        self.wait = _NO_WAIT
        """Why it had to wait at first."""
        self.is_waiting = False
        """It is in a queue; then nothing of the above may be changed but by `drop`."""

    def hedge(self) -> Ticket:
        """Another one for the same request, which is to run a second time beside the first."""
        other = Ticket(self.model, self.version, self.plan, self.eligible, self.came_at)
        other.rows, other.size = self.rows, self.size
        other.priority, other.tenant, other.deadline = self.priority, self.tenant, self.deadline
        other.position, other.wait = self.position, self.wait
        return other


class ScheduleRefused(Exception):
    """A request is not run. The caller turns it into an answer of its protocol."""

    def __init__(self, refusal: Refusal, retry_after_s: float) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        """Estimate of when there will be room, in seconds."""


POSITION_BOUNDS: Final = tuple([(1 << power) - 1 for power in range(17)])
"""Upper bounds of the histograms of places: 0, 1, 3, 7 ... 65,535."""


class PositionHistogram:
    """How many waited before each request that joined a queue; plain integers."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(POSITION_BOUNDS) + 1)
        """By bucket, not cumulative; the last one is everything above."""
        self.sum = 0

    def add(self, position: int) -> None:
        """Count one that joined behind so many."""
        self.counts[min(position.bit_length(), len(POSITION_BOUNDS))] += 1
        self.sum += position


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBackendView:
    """What is shown of a model backend."""

    model: bytes
    version: bytes
    backend: Backend
    in_flight: int
    limit: int
    """0 is no limit."""
    expected_s: float
    """Time that a request of one row takes when nothing else runs; 0 where it is not known."""
    row_s: float
    """What each further row adds."""
    learnt: int
    """Executions that it was learnt from; where there are none, and yet a time, it is what the
    backend says."""
    slowed: float = 1.0
    """By how much requests count as slower there because others use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQueueView:
    """What is shown of a model queue."""

    model: bytes
    version: bytes
    waiting: Mapping[int, int]
    """Tickets by priority."""
    oldest_s: float
    """How long the one that has waited longest has waited."""


class Scheduler(Protocol):
    """Decides when and where requests begin."""

    on_lost: Callable[[Ticket, float], None]
    """Called with a request, and the time, when its backend is found never to answer it. It is not
    counted from then on; its attempt goes on until `complete`."""

    @property
    def wake_at(self) -> float:
        """When `next_due` and `next_refused` want to be called though nothing ended; inf for
        never."""
        ...

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        """Place a request: the backend where it begins now and is counted, or None: it waits.

        Raises:
            ScheduleRefused: it is not run.
        """
        ...

    def hedge(self, ticket: Ticket, now: float) -> Backend | None:
        """Begin a second attempt beside the first one where it was not tried and there is room at
        once, and nobody waits. None: not at all."""
        ...

    def complete(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """The attempt of a ticket that began is over."""
        ...

    def best(self, ticket: Ticket, now: float, home: Backend | None = None) -> Backend | None:
        """Where a request that cannot wait is to go: where it ends first, be there room or not.

        Args:
            ticket: not to be offered; it may be begun by `start`.
            now: the time.
            home: of its eligible backends the one that is as good unless another one is clearly
                better.

        Returns:
            None: every backend is at its limit for all requests.
        """
        ...

    def stays(self, ticket: Ticket, home: Backend, now: float) -> bool:
        """Whether `best` would leave another request like a ticket that began at its home; most
        often without asking."""
        ...

    def start(self, ticket: Ticket, backend: Backend, now: float) -> None:
        """A request begins at one of its eligible backends without having been offered: it counts
        there until it is `complete`."""
        ...

    def drop(self, ticket: Ticket) -> None:
        """A ticket that waits is wanted no more; one that does not wait is left alone."""
        ...

    def next_due(self, now: float) -> Ticket | None:
        """The next ticket that begins now, at `ticket.backend`; it is counted already.

        A call looks at a bounded number of tickets that are late. Where others are left, `wake_at`
        is not later than `now`: call it again then, once others have had their time.
        """
        ...

    def next_refused(self, now: float) -> Ticket | None:
        """The next waiting ticket that is not run, with `ticket.refused`; it waits no more.
        Looks at no more than `next_due` does."""
        ...

    def follow(
        self, renew: Callable[[Ticket], tuple[Plan, tuple[Backend, ...]] | None], now: float
    ) -> list[Ticket]:
        """Another snapshot: plans, backends, limits.

        Args:
            renew: gives the plan and the eligible backends of a waiting ticket, None where its
                model is not scheduled any more; asked once for all waiting tickets of a model queue
                that had the same tuple of eligible ones.
            now: the time.

        Returns:
            Tickets that wait no more because their model is not scheduled: place them otherwise.
        """
        ...

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """A backend says how much it has to do, for all clients together. What others do there, and
        what was learnt does not contain, counts; less and less as the report ages."""
        ...

    def in_flight_by_model(self, backend: Backend) -> Mapping[bytes, int]:
        """Requests that are under way at a backend, by model."""
        ...

    def assume(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured], now: float
    ) -> None:
        """A backend says how long executions take, by model and version: what its model backends
        begin with, as long as nothing was learnt of them."""
        ...

    def forget(self, backend: Backend) -> None:
        """A backend is gone, or was restarted: nothing learnt of it holds."""
        ...

    def model_backends(self, models: Collection[bytes] | None = None) -> Iterator[ModelBackendView]:
        """Every model backend that is known of; with `models`, those of models of these names."""
        ...

    def model_queues(self, now: float, *, idle: bool = True) -> Iterator[ModelQueueView]:
        """Every model queue that is known of; without `idle`, those in which requests wait."""
        ...
