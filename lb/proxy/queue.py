"""Requests that wait: for their turn at a backend, or for any backend at all.

The scheduler decides (`lb.domain.schedule`); here its tickets and the exchanges come together. An
exchange that waits has no attempt under way: payload that comes for it is held as while a
connection is dialled. Its turn comes through `Waiting.go_on`, with the backend kept for it, so
whatever ends an exchange ends its waiting by `Accounts.stop`, at no cost to anybody.

Nothing is begun while something else is on the stack: turns are given at the end of a turn of the
event loop, some at a time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from typing import Any, Final

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend, Histogram
from lb.domain.errors import RequestRefused
from lb.domain.model import ModelFacts
from lb.domain.names import readable
from lb.domain.operation import OperationKind
from lb.domain.outcome import UNREACHED, Outcome, Reason
from lb.domain.pool import OnDemand, Placement, PoolRef, PoolSnapshot
from lb.domain.schedule import (
    POSITION_BOUNDS,
    Ending,
    PositionHistogram,
    QueuePlan,
    RefusalReason,
    ScheduleRefused,
    Ticket,
    Wait,
)
from lb.domain.sequence import Question
from lb.domain.server_errors import is_backend_error
from lb.kserve.work import UNSAID
from lb.proxy.eligible import placement_of
from lb.proxy.exchange import Attempt, Exchange, RoutingHints, Waiting
from lb.proxy.lost import report_lost
from lb.proxy.request_class import QueueRequestClass
from lb.proxy.request_classes import RequestClasses
from lb.proxy.urgency_headers import priority_of
from lb.settings.model import Settings
from lb.settings.scheduling import TenantBy
from lb.settings.values import field_name
from lb.wire.memory_budget import MemoryBudget

SLOW_S: Final = 0.1
"""Transfers that take no longer count like executions. In that time 50 Mbit/s carry an image of
3x224x224 FP32 (602,112 bytes)."""
_HELD_AT_MOST: Final = 1 << 20
"""Bytes of one waiting request that are held at most: the stream's window, or less."""
_TURNS_AT_ONCE: Final = 64
"""Requests that begin, or are refused, in one iteration of the loop."""
_ANEW_AT_ONCE: Final = 32
"""Exchanges among them that are placed anew, or looked at for that; the others are not to wait for
thousands of those."""
_MAX_TENANT: Final = 128
_GOOD: Final = Ending.GOOD
_BAD_ENDS: Final = UNREACHED | {
    Outcome.LOST, Outcome.RESET, Outcome.REFUSED, Outcome.PROTOCOL_ERROR, Outcome.STALLED,
    Outcome.SILENT, Outcome.BROKEN, Outcome.HEAD_TOO_LARGE,
}  # fmt: skip
_REASONS: Final = {
    RefusalReason.FULL: (Reason.QUEUE_FULL, "too many requests wait for this model"),
    RefusalReason.SHED: (
        Reason.QUEUE_SHED,
        "too many requests wait for this model, and others go before it",
    ),
    RefusalReason.EXPIRED: (Reason.QUEUE_TIMEOUT, "the request has waited for too long"),
    RefusalReason.LATE: (Reason.DEADLINE, "the request cannot be answered before its deadline"),
}
_WHY: Final = {why: why.value for why in Wait}
"""Looked up for each request that waits: `value` is a call."""
MAX_WAIT_REASONS: Final = 1000
"""Pairs of a model and a reason that are counted by name. Which models a standby backend has is not
known yet, so clients may invent some."""
_LAST_POSITIONS: Final = len(POSITION_BOUNDS)
_OVERLOAD: Final = frozenset({RefusalReason.FULL, RefusalReason.SHED, RefusalReason.EXPIRED})
_LOOK_S: Final = 0.1
"""How soon one that no backend would take goes to any of them again."""
_APART_S: Final = 0.05
"""Between two looks at those."""
_AT_ONCE: Final = -inf
"""When those are placed anew that had waited for a turn, which they cannot have any more."""
NO_BACKEND: Final = "no backend is available"
NOT_LOADED: Final = "the model could not be loaded in time"
_TOO_MANY_HELD: Final = "too many requests wait for a backend that is activated"
_WAKING: Final = frozenset({OperationKind.INFERENCE, OperationKind.STREAM})
"""Requests that standby backends are activated and models are loaded for; others look, and need no
GPU."""

Later = Callable[[float, Callable[[], None]], Any]
"""Has something called after seconds; gives what has a `cancel`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What waiting requests go by."""

    wait_for_backend_s: float = 0.0
    """How long they wait while no backend is eligible; 0: not at all."""
    max_held: int = 100_000
    """How many wait for a standby backend at most."""
    overload_status: int = 503
    """Status of HTTP answers to those that are refused since there are too many."""
    priority_header: bytes = b""
    """In lower case; empty: none."""
    priority: int = 2
    """Priority of requests that name none; 1 is the highest."""
    priorities: Mapping[bytes, int] = field(default_factory=dict)
    """Priority of requests that name none, by model."""
    by_token: bool = False
    """Tenants are told apart by their tokens."""
    tenant_header: bytes = b""
    """Or by this one, in lower case."""

    @property
    def noted(self) -> frozenset[bytes]:
        """Headers that are read."""
        return frozenset({self.priority_header, self.tenant_header} - {b""})


def queue_options(settings: Settings) -> QueueOptions:
    """Read from settings what waiting requests go by."""
    scheduling = settings.scheduling
    by_header = scheduling.tenants is TenantBy.HEADER
    return QueueOptions(
        wait_for_backend_s=scheduling.wait_for_backend,
        max_held=scheduling.max_queue_size,
        overload_status=scheduling.overload_status.value,
        priority_header=field_name(scheduling.priority_header),
        priority=scheduling.priority,
        priorities={
            name.encode(): own.priority
            for name, own in settings.models.items()
            if own.priority is not None
        },
        by_token=scheduling.tenants is TenantBy.TOKEN,
        tenant_header=field_name(scheduling.tenant_header) if by_header else b"",
    )


_Held = tuple[Exchange, Waiting]
"""An exchange that waits, and who goes on with it."""


class Queue:
    """All that wait in one process. To be used from its event loop."""

    __slots__ = (
        "_anew",
        "_armed_for",
        "_backends",
        "_clock",
        "_early",
        "_held",
        "_is_soon",
        "_is_stale",
        "_later",
        "_memory_budget",
        "_pool",
        "_timer",
        "_unplaced",
        "_unplaced_due",
        "_waiting",
        "options",
        "passed_over",
        "positions",
        "request_class",
        "scheduler",
        "turn",
        "uploads",
        "wait_reasons",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        pool: PoolRef,
        clock: Callable[[], float],
        memory_budget: MemoryBudget,
        options: QueueOptions | None = None,
        *,
        later: Later | None = None,
    ) -> None:
        """
        Args:
            scheduler: decides; it belongs to this object.
            pool: the published pool.
            clock: monotonic seconds.
            memory_budget: of all bytes held.
            options: what waiting requests go by until `configure`.
            later: for tests; otherwise it is the running event loop that waits.
        """
        self.scheduler = scheduler
        scheduler.on_lost = report_lost
        scheduler.on_room = self._soon
        self.options = options or QueueOptions()
        self._pool = pool
        self._clock = clock
        self._memory_budget = memory_budget
        self._later = later or _on_the_loop
        self.turn: Ticket | None = None
        """The one whose turn has come, until its exchange is placed at `Ticket.backend`."""
        self.uploads: dict[Exchange, None] = {}
        """Requests that were placed while their clients still sent them, until they have sent all
        or `SlowClients` finds that the attempt has ended."""
        self.passed_over: dict[Exchange, None] = {}
        """Requests that wait, and are not queued by the scheduler any more: their turn came before
        their slow clients had sent them. They are queued again once these have, or cannot."""
        self._waiting: dict[Ticket, _Held] = {}
        self._held = 0
        """Bytes that those which wait may come to hold."""
        self._unplaced: dict[Exchange, tuple[float, Waiting]] = {}
        """Exchanges that no backend would take, or that cannot have their turn any more, and when
        they are placed anew, whatever the pool is then."""
        self._unplaced_due = inf
        """When these are to be looked at though the pool stays as it is."""
        self._early: dict[Exchange, Waiting] = {}
        """Steps of sequences that wait for news of these from other processes."""
        self._anew: deque[Exchange] = deque()
        """Exchanges among them that are to be looked at now; some may have left."""
        self._is_soon = False
        self._is_stale = False
        """There is another snapshot."""
        self._timer: Any = None
        self._armed_for = inf
        self._backends: dict[Backend, int] = {}
        """The backends of the last snapshot, and how often each had died; -1 for one that is gone,
        and whose last requests will have it learnt again."""
        self.request_class = RequestClasses(pool, self._placement, self._tell_usual)
        """What holds for scheduled requests."""
        self.positions: dict[bytes, PositionHistogram] = {}
        """How many waited before those that had to wait, by model."""
        self.wait_reasons: dict[tuple[bytes, str], int] = {}
        """Requests that had to wait, by model and why."""
        pool.subscribe(self._on_snapshot)

    def configure(self, options: QueueOptions) -> None:
        """Go by other options from now on."""
        self.options = options
        self.request_class.forget()

    def _placement(self, exchange: Exchange) -> Placement:
        """Where an exchange may go."""
        return placement_of(exchange, self._pool)

    def __len__(self) -> int:
        """Exchanges that wait."""
        return len(self._waiting) + self.unplaced

    def has(self, exchange: Exchange) -> bool:
        """Whether an exchange waits."""
        ticket = exchange.ticket
        return (
            exchange in self._unplaced
            or exchange in self._early
            or (ticket is not None and ticket in self._waiting)
        )

    def room(self, exchange: Exchange) -> int:
        """Bytes of an exchange that may be held while it waits for its turn: what was counted for
        it. 0 for all others, those that wait for any backend included."""
        ticket = exchange.ticket
        if ticket is None or ticket not in self._waiting:
            return 0
        return min(ticket.size, _HELD_AT_MOST)

    # What placement and accounts ask

    def offer(
        self,
        exchange: Exchange,
        hints: RoutingHints,
        request_class: QueueRequestClass,
        now: float,
        waiting: Waiting | None,
    ) -> Backend | None:
        """Place an exchange of a scheduled model for the first time. None: it waits.

        Args:
            exchange: to be placed.
            hints: of the exchange.
            request_class: of its model.
            now: the time.
            waiting: goes on with it when it has waited; None: it does not wait.

        Raises:
            RequestRefused: it is not run.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Most begin at once: they are counted here,
        # without a search for how long they waited; and nothing says how urgent they are. `_began`
        # and `_name_urgency` are the reference.
        size = hints.size or exchange.bytes_in
        ticket = Ticket(
            request_class, now, hints.rows, size, exchange.deadline, request_class.priority
        )
        if exchange.tried:
            ticket.tried = exchange.tried
        if hints.priority or request_class.is_urgency_named:
            self._name_urgency(exchange, ticket, hints.priority)
        try:
            backend = self.scheduler.offer(ticket, now)
        except ScheduleRefused as refused:
            raise self._refusal(refused) from refused
        exchange.ticket = ticket
        if backend is None:
            backend = self._wait(exchange, waiting, ticket, request_class)
            if not self.scheduler.is_as_before:
                self._look_in_time(now)
            return backend
        if not ticket.tried:
            request_class.waits.counts[0] += 1
        if self._waiting:
            self._look_in_time(now)
        return backend

    def divide(
        self, exchange: Exchange, rows: int, size: int, facts: ModelFacts, most: int
    ) -> tuple[int, ...]:
        """See `lb.proxy.split.Divider`."""
        ticket = self._ticket_to_divide(exchange, rows, size)
        if ticket is None:
            return ()
        now = ticket.arrived_at
        return self.scheduler.divide(ticket, now, facts.max_rows, most, facts.preferred)

    def may_divide(
        self, exchange: Exchange, rows: int, size: int, facts: ModelFacts, most: int
    ) -> bool:
        """See `lb.proxy.split.Divider`."""
        ticket = self._ticket_to_divide(exchange, rows, size)
        if ticket is None:
            return True
        now = ticket.arrived_at
        return self.scheduler.may_divide(ticket, now, facts.max_rows, most, facts.preferred)

    def _ticket_to_divide(self, exchange: Exchange, rows: int, size: int) -> Ticket | None:
        """The ticket of a batch that may be cut. None: its model is not scheduled, or nobody has
        it."""
        hints = exchange.hints
        asked = RoutingHints(b"" if hints is None else hints.version)
        if hints is not None:
            asked.regions = hints.regions
        request_class = self.request_class.find(exchange, asked)
        return None if request_class is None else Ticket(request_class, self._clock(), rows, size)

    def offer_again(
        self,
        exchange: Exchange,
        ticket: Ticket,
        request_class: QueueRequestClass,
        now: float,
        waiting: Waiting | None,
        tried: tuple[Backend, ...],
    ) -> Backend | None:
        """Place an exchange again that has its ticket already. None: it waits.

        Args:
            exchange: to be placed.
            ticket: of the exchange.
            request_class: of its model.
            now: the time.
            waiting: goes on with it when it has waited; None: it does not wait.
            tried: backends that it is to avoid.

        Raises:
            RequestRefused: it is not run.
        """
        ticket.request_class, ticket.tried = request_class, tried
        try:
            backend = self.scheduler.offer(ticket, now)
        except ScheduleRefused as refused:
            raise self._refusal(refused) from refused
        if backend is None:
            backend = self._wait(exchange, waiting, ticket, request_class)
        else:
            self._began(ticket, now)
        if self._waiting:
            self._look_in_time(now)
        return backend

    def _wait(
        self,
        exchange: Exchange,
        waiting: Waiting | None,
        ticket: Ticket,
        request_class: QueueRequestClass,
    ) -> Backend | None:
        """Have a ticket wait, unless that would hold too much: then it goes to some backend."""
        # HOT PATH (benchmarks/bench_schedule.py). `_forget` gives back what is counted here.
        size = ticket.size if ticket.size < _HELD_AT_MOST else _HELD_AT_MOST
        held = self._held + size
        if waiting is not None and held <= self._memory_budget.keep_up_to:
            self._waiting[ticket] = exchange, waiting
            self._held = held
            model = exchange.model
            key = model, _WHY[ticket.wait]
            self.wait_reasons[key] = self.wait_reasons.get(key, 0) + 1
            positions = self.positions.get(model)
            if positions is None:
                positions = self.positions[model] = PositionHistogram()
            # `PositionHistogram.add` is written out.
            position = ticket.position
            place = position.bit_length()
            positions.counts[place if place < _LAST_POSITIONS else _LAST_POSITIONS] += 1
            positions.sum += position
            return None
        # Rather too many at a backend than too much here.
        self.scheduler.drop(ticket)
        exchange.ticket = None
        picker = request_class.placement.picker
        backend = picker.pick() if picker is not None else None
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, "all backends are at their limit")
        return backend

    def beside(
        self,
        ticket: Ticket,
        request_class: QueueRequestClass,
        tried: tuple[Backend, ...],
        now: float,
    ) -> Backend:
        """Place a second attempt, which has a ticket, beside those at the backends tried.

        Raises:
            RequestRefused: it could not begin at once, and it does not wait.
        """
        ticket.request_class, ticket.tried = request_class, tried
        backend = self.scheduler.hedge(ticket, now)
        if backend is None:
            raise RequestRefused(Reason.BACKENDS_FULL, "no other backend can begin with it now")
        return backend

    def may_hold(self, exchange: Exchange, now: float, on_demand: OnDemand | None = None) -> bool:
        """Whether an exchange that no backend would take may wait for one.

        Args:
            exchange: in question.
            now: the time.
            on_demand: of its model, where that is loaded nowhere and will be.
        """
        wait_s = self.options.wait_for_backend_s if on_demand is None else on_demand.wait_s
        return wait_s > 0 and (not exchange.held_until or now < exchange.held_until)

    def may_hold_again(self, exchange: Exchange, now: float) -> bool:
        """Whether an exchange that backends have failed may wait, as `may_hold`: a step of a
        sequence has to stay where it is."""
        hints = exchange.hints
        has_step = hints is not None and hints.step is not None
        return not has_step and self.may_hold(exchange, now, self.on_demand_again(exchange))

    def hold(
        self,
        exchange: Exchange,
        waiting: Waiting,
        now: float,
        on_demand: OnDemand | None = None,
    ) -> None:
        """Let an exchange wait that may, see `may_hold`: until another snapshot has a backend for
        it, or, where there are some that would not take it, for a moment.

        Args:
            exchange: that no backend takes.
            waiting: goes on with it.
            now: the time.
            on_demand: see `may_hold`.

        Raises:
            RequestRefused: too many wait for a standby backend.
        """
        if not exchange.held_until and on_demand is not None:
            if on_demand.is_standby and len(self._unplaced) >= self.options.max_held:
                raise RequestRefused(
                    Reason.QUEUE_FULL, _TOO_MANY_HELD, retry_after_s=on_demand.retry_after_s
                )
            exchange.held_until = now + on_demand.wait_s
            exchange.held_for = "activating" if on_demand.is_standby else "loading"
            self._count_wait(exchange.model, exchange.held_for)
        elif not exchange.held_until:
            exchange.held_until = now + self.options.wait_for_backend_s
            exchange.held_for = "no_backend"
            self._count_wait(b"", exchange.held_for)
        look_at = now + _LOOK_S if exchange.tried else inf
        due = min(look_at, exchange.held_until)
        self._unplaced[exchange] = due, waiting
        self._unplaced_due = min(due, self._unplaced_due)
        self._arm(self._unplaced_due, now)

    def models_awaited(self) -> Mapping[bytes, float]:
        """Models of the requests that wait for a backend or for a load, and when the first of these
        requests came."""
        since: dict[bytes, float] = {}
        for exchange in self._unplaced:
            model, came_at = exchange.model, exchange.started_at
            since[model] = min(since.get(model, came_at), came_at)
        return since

    def place_anew(self, exchange: Exchange, waiting: Waiting) -> None:
        """Have an exchange placed anew that no backend takes as it is: at the end of this turn of
        the event loop."""
        self._unplaced[exchange] = _AT_ONCE, waiting
        self._unplaced_due = _AT_ONCE
        self._soon()

    def hold_for_news(self, exchange: Exchange, waiting: Waiting, question: Question) -> None:
        """Let a step wait whose sequence nobody has started, as far as is known here.

        Args:
            exchange: that it is.
            waiting: goes on with it.
            question: what it waits for.
        """
        self._early[exchange] = waiting
        exchange.held_for = "sequence"
        self._count_wait(exchange.model, exchange.held_for)
        question.when_over(partial(self._news_came, exchange))

    def _news_came(self, exchange: Exchange) -> None:
        waiting = self._early.pop(exchange, None)
        if waiting is not None:
            self.place_anew(exchange, waiting)

    def leave(self, exchange: Exchange) -> None:
        """An exchange without an attempt under way is over: if it waits, it waits no more."""
        self._early.pop(exchange, None)
        self._unplaced.pop(exchange, None)
        self.passed_over.pop(exchange, None)
        ticket = exchange.ticket
        if ticket is not None and self._forget(ticket) is not None:
            self.scheduler.drop(ticket)
            self._soon()

    def ended(self, attempt: Attempt, outcome: Outcome, code: int, now: float) -> None:
        """An attempt is over, and counted no more: if it has a ticket, this is over, too."""
        ticket, attempt.ticket = attempt.ticket, None
        if ticket is not None:
            ending = _ending(attempt.exchange.protocol, outcome, code)
            if attempt.erred and ending is Ending.GOOD:
                ending = Ending.FAILED  # what it answered with a good status was none
            self.scheduler.complete(ticket, now, ending)

    @property
    def has_queued(self) -> bool:
        """Whether a request waits that is given the next turn."""
        return len(self._waiting) > len(self.passed_over)

    def upload_ended(self, exchange: Exchange, now: float) -> None:
        """The client of an exchange has sent all of it."""
        exchange.sent_at = now
        self.uploads.pop(exchange, None)
        attempt = exchange.attempt
        if attempt is None:
            # One that was passed over at a later attempt is found by `SlowClients`.
            if exchange in self.passed_over:
                self.queue_again(exchange)
        elif attempt.is_set_aside and not attempt.first_byte_at:
            self.count_again(exchange, attempt, now)

    def queue_again(self, exchange: Exchange) -> None:
        """Have a request queued again, or begun, that was passed over."""
        del self.passed_over[exchange]
        held = None if exchange.ticket is None else self._forget(exchange.ticket)
        if held is not None:
            self.place_anew(*held)

    def set_aside(self, attempt: Attempt, now: float) -> None:
        """Count an attempt no more whose client is slow to send its request or to read its
        response: neither against the limit of its backend nor against that of its model there."""
        attempt.is_set_aside = True
        attempt.backend.count_no_more()
        ticket, attempt.ticket = attempt.ticket, None
        if ticket is not None:
            self.scheduler.complete(ticket, now, Ending.NEITHER)

    def count_again(self, exchange: Exchange, attempt: Attempt, now: float) -> None:
        """Count an attempt that was set aside, be there room or not: all of its request has come,
        and it may be executed. It does not count for its model where the backend is not eligible
        for that any more."""
        attempt.is_set_aside = False
        attempt.backend.count_again()
        ticket, hints = exchange.ticket, exchange.hints
        if ticket is None or hints is None:
            return
        request_class = self.request_class.find(exchange, hints)
        if request_class is not None and attempt.backend in request_class.eligible:
            ticket.request_class = request_class
            self.scheduler.start(ticket, attempt.backend, now)
            attempt.ticket = ticket

    # Tickets

    def _tell_usual(self, request_class: QueueRequestClass) -> None:
        """Have a new request class say what the options say of a model."""
        options = self.options
        request_class.priority = options.priorities.get(request_class.model, options.priority) - 1
        request_class.is_urgency_named = bool(
            options.priority_header or options.by_token or options.tenant_header
        )

    def _name_urgency(self, exchange: Exchange, ticket: Ticket, said: int) -> None:
        """Note the priority of a new ticket and whose it is, where something says so.

        Args:
            exchange: that it is of.
            ticket: to be offered for the first time.
            said: what the request itself says of its priority.
        """
        options = self.options
        priority = said
        if options.priority_header:
            priority = priority_of(exchange.hint(options.priority_header)) or said
        if priority == UNSAID:
            priority = options.priorities.get(exchange.model, options.priority)
        ticket.priority = priority - 1
        if options.by_token:
            ticket.tenant = exchange.token
        elif options.tenant_header:
            name = exchange.hint(options.tenant_header)[:_MAX_TENANT]
            ticket.tenant = readable(name)

    def _forget(self, ticket: Ticket) -> _Held | None:
        held = self._waiting.pop(ticket, None)
        if held is not None:
            self._held -= ticket.size if ticket.size < _HELD_AT_MOST else _HELD_AT_MOST
        return held

    def _refusal(self, refused: ScheduleRefused) -> RequestRefused:
        reason, text = _REASONS[refused.refusal]
        is_late = refused.refusal not in _OVERLOAD
        return RequestRefused(
            reason,
            text,
            retry_after_s=0.0 if is_late else max(refused.retry_after_s, 0.001),
            status=0 if is_late else self.options.overload_status,
        )

    # Counting

    def _began(self, ticket: Ticket, now: float) -> None:
        if ticket.tried:
            return  # it goes again
        request_class = ticket.request_class
        if isinstance(request_class, QueueRequestClass):
            histogram = request_class.waits
        else:  # it was moved to another pool while it waited
            histogram = self.request_class.waits.setdefault(request_class.model, Histogram())
        waited = now - ticket.arrived_at
        histogram.counts[bisect_left(LATENCY_BOUNDS_S, waited)] += 1
        histogram.sum += waited

    def _count_wait(self, model: bytes, why: str) -> None:
        key = (model, why)
        if key not in self.wait_reasons and len(self.wait_reasons) >= MAX_WAIT_REASONS:
            key = (b"", why)
        self.wait_reasons[key] = self.wait_reasons.get(key, 0) + 1

    def waiting(self) -> Iterator[Ticket]:
        """Return the tickets that wait for their turn, in the order in which they came."""
        yield from self._waiting

    def oldest_s(self, now: float) -> float:
        """How long the first of those that wait for their turn has waited; 0 where none does."""
        first = next(iter(self._waiting), None)
        return 0.0 if first is None else now - first.arrived_at

    @property
    def waits(self) -> Mapping[bytes, Histogram]:
        """How long scheduled requests that began had waited, by model."""
        return self.request_class.waits

    @property
    def unplaced(self) -> int:
        """How many wait for any backend, for news of their sequence, or to be placed anew."""
        return len(self._unplaced) + len(self._early)

    # Turns

    def _soon(self) -> None:
        """Give turns at the end of this iteration of the event loop."""
        if not self._is_soon:
            self._is_soon = True
            self._later(0.0, self._give_turns)

    def _look_in_time(self, now: float) -> None:
        """Give turns when the scheduler asks for it, after a request was offered."""
        at = self.scheduler.wake_at
        if at <= now:
            self._soon()
        else:
            self._arm(at, now)

    def _on_snapshot(self, _snapshot: PoolSnapshot) -> None:
        self._is_stale = True
        if self._waiting or self._unplaced:
            self._soon()
        else:
            self._follow(self._clock())

    def _give_turns(self) -> None:
        """Begin, refuse and give up what is due."""
        self._is_soon = False
        now = self._clock()
        due = _AT_ONCE  # where an error ends this early
        try:
            is_news = self._is_stale
            if is_news:
                self._follow(now)
            elif self.scheduler.is_following:
                self._place_otherwise(self.scheduler.follow_rest(now))
            left = _TURNS_AT_ONCE
            if self._anew or (self._unplaced and (is_news or now >= self._unplaced_due)):
                left -= self._place_anew(now, is_news=is_news)
            due = self._go(now, left)
        finally:
            if self._anew or self.scheduler.is_following:
                self._soon()
            if not self._is_soon:
                if self._unplaced:
                    # uvloop rounds timers to milliseconds, so this may have been called too early.
                    due = min(due, self._unplaced_due)
                self._arm(due, now)

    def _go(self, now: float, left: int) -> float:
        """Begin or refuse so many at most, which the scheduler has counted already; gives when to
        look again."""
        scheduler = self.scheduler
        while left:
            ticket = scheduler.next_due(now)
            if ticket is None:
                break
            left -= 1
            held = self._waiting.get(ticket)
            if held is not None and self._passes_over(held[0], ticket, now):
                held = None
            if held is not None:
                self._forget(ticket)
                _, waiting = held
                self.turn = ticket
                waiting.go_on()
            if held is not None and self.turn is None:
                self._began(ticket, now)
            else:
                self.turn = None
                scheduler.complete(ticket, now, Ending.NEITHER)
            # Most ends make room for one, and nobody is to be refused: nothing is asked twice then.
            due = scheduler.wake_at
            if due > now:
                return due
        while left:
            ticket = scheduler.next_refused(now)
            if ticket is None:
                break
            left -= 1
            held = self._forget(ticket)
            if held is not None and ticket.refused is not None:
                _, waiting = held
                waiting.refuse(self._refusal(ticket.refused))
        return scheduler.wake_at

    def _passes_over(self, exchange: Exchange, ticket: Ticket, now: float) -> bool:
        """Whether a request does not get the turn that it has: its client could have sent all of it
        while it was queued, and has not. It would take the place of one that can be executed."""
        if exchange.sent_at < inf or now - ticket.queued_at < SLOW_S or not exchange.is_uploading:
            return False
        self.passed_over[exchange] = None
        return True

    def _place_anew(self, now: float, *, is_news: bool) -> int:
        """Look at some that are not where they could have a turn: at those that have waited long
        enough, and where there is another pool at all. Gives at how many."""
        anew, unplaced = self._anew, self._unplaced
        if is_news or not anew:
            # Whoever was looked at stands behind the others, so that frequent news keep nobody
            # from being looked at.
            self._anew = anew = deque(
                [e for e, (due, _) in unplaced.items() if is_news or due <= now]
            )
        count = 0
        while anew and count < _ANEW_AT_ONCE:
            exchange = anew.popleft()
            held = unplaced.pop(exchange, None)
            if held is not None:
                count += 1
                self._look_at(exchange, *held, now)
        if not anew:
            self._unplaced_due = inf
            if unplaced:
                # All of them are looked at together, so this is not done for each.
                self._unplaced_due = max(min([due for due, _ in unplaced.values()]), now + _APART_S)
                self._arm(self._unplaced_due, now)
        return count

    def _look_at(self, exchange: Exchange, due: float, waiting: Waiting, now: float) -> None:
        """Place an exchange anew if that may help; refuse it if it is to be given up."""
        if due == _AT_ONCE:
            waiting.go_on()
        elif self._placement(exchange).eligible:
            exchange.tried = ()
            self._schedule_late(exchange)
            waiting.go_on()
        elif (on_demand := self.on_demand_again(exchange)) is not None and on_demand.error:
            _give_up(exchange, waiting, no_backend(on_demand, on_demand.error))
        elif exchange.tried and on_demand is not None and not on_demand.is_standby:
            # Its backend is gone. From now on it waits for a load as if it had just come.
            exchange.tried = ()
            waiting.go_on()
        elif now >= exchange.held_until:
            is_loading = on_demand is not None and not on_demand.is_standby
            text = NOT_LOADED if is_loading else NO_BACKEND
            _give_up(exchange, waiting, no_backend(on_demand, text))
        else:
            self._unplaced[exchange] = (due if due > now else exchange.held_until), waiting

    def _schedule_late(self, exchange: Exchange) -> None:
        """Have a request take its turn whose model was not known when it came: all that wait for a
        backend would go there at once. It counts as one row, since nobody looked at it."""
        route = self._pool.current.routes.get(exchange.model)
        if (
            exchange.hints is None
            and route is not None
            and route.plan is not None
            and exchange.operation.kind is OperationKind.INFERENCE
        ):
            exchange.hints = hints = RoutingHints()
            hints.rows = 1

    def on_demand_again(self, exchange: Exchange) -> OnDemand | None:
        """Return what `on_demand` does for an exchange that was under way or held: that the only
        backend which has its model is gone may not be known yet. Questions wait for nothing."""
        if exchange.operation.kind not in _WAKING:
            return None
        return self.on_demand(exchange) or self._pool.current.loadable.get(exchange.model)

    def on_demand(self, exchange: Exchange) -> OnDemand | None:
        """What an exchange waits for that no backend would take: its model, which is loaded for it,
        or a standby backend. None: nothing is done for it."""
        snapshot = self._pool.current
        route = snapshot.routes.get(exchange.model)
        found = snapshot.on_standby if route is None else route.on_demand or snapshot.on_standby
        if found is None or exchange.operation.kind is OperationKind.READ:
            return None
        if not found.is_standby:
            return found
        if exchange.operation.kind not in _WAKING or self._placement(exchange).eligible:
            return None
        return found

    # Another snapshot

    def _follow(self, now: float) -> None:
        self._is_stale = False
        scheduler = self.scheduler
        before = self._backends
        self._backends = {each: each.deaths for each in self._pool.current.backends}
        for backend, deaths in before.items():
            if self._backends.get(backend) != deaths:
                scheduler.forget(backend)
                if backend.in_flight and backend not in self._backends:
                    self._backends[backend] = -1
        self._place_otherwise(scheduler.follow(self._renew, now))

    def _place_otherwise(self, tickets: list[Ticket]) -> None:
        """Have the requests of tickets placed anew, whose model is not scheduled any more."""
        for ticket in tickets:
            held = self._forget(ticket)
            if held is not None:
                exchange, waiting = held
                exchange.ticket = None
                self._unplaced[exchange] = _AT_ONCE, waiting
                self._unplaced_due = _AT_ONCE

    def _renew(self, ticket: Ticket) -> tuple[QueuePlan, tuple[Backend, ...]] | None:
        """What holds for a waiting ticket now; None: it is to be placed otherwise."""
        route = self._pool.current.routes.get(ticket.model)
        held = self._waiting.get(ticket)
        if route is None or route.plan is None or held is None:
            return None
        exchange, _ = held
        eligible = self._placement(exchange).eligible
        return (route.plan, eligible) if eligible else None

    def refuse_all(self, refused: RequestRefused) -> None:
        """Refuse everybody that waits: there is no time left to wait for anything."""
        for ticket in tuple(self._waiting):
            held = self._forget(ticket)
            if held is not None:
                self.scheduler.drop(ticket)
                _, waiting = held
                waiting.refuse(refused)
        for exchange in tuple(self._unplaced):
            unplaced = self._unplaced.pop(exchange, None)
            if unplaced is not None:
                _, waiting = unplaced
                waiting.refuse(refused)
        for exchange in tuple(self._early):
            early = self._early.pop(exchange, None)
            if early is not None:
                early.refuse(refused)

    # Time

    def _arm(self, due: float, now: float) -> None:
        """Look again at a time, or earlier."""
        if due >= self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = due
        self._timer = self._later(max(due - now, 0.0), self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._armed_for = inf
        self._give_turns()

    def close(self) -> None:
        """Give no turns any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = -inf


def no_backend(on_demand: OnDemand | None, detail: str) -> RequestRefused:
    """Refuse a request that no backend takes. Where it is known when one will, that is said."""
    retry_after_s = 0.0 if on_demand is None else on_demand.retry_after_s
    return RequestRefused(Reason.NO_BACKEND, detail, retry_after_s=retry_after_s)


def _give_up(exchange: Exchange, waiting: Waiting, refusal: RequestRefused) -> None:
    """Refuse a request that has waited for a backend, unless another variant serves it."""
    if exchange.leave_variant():
        waiting.go_on()
    else:
        waiting.refuse(refusal)


def _on_the_loop(delay_s: float, call: Callable[[], None]) -> Any:
    """Call something later, or in the next iteration of the event loop.

    uvloop rounds times to milliseconds, and less than half of one to none. Then the loop would spin
    until the time has come, so times are rounded up here.
    """
    loop = asyncio.get_running_loop()
    if not delay_s:
        return loop.call_soon(call)
    return loop.call_later(ceil(delay_s * 1000.0) / 1000.0, call)


def _ending(protocol: AppProtocol, outcome: Outcome, code: int) -> Ending:
    """What the end of an attempt tells of its backend."""
    if outcome is Outcome.ANSWERED:
        is_http = protocol is AppProtocol.HTTP
        if 200 <= code < 400 if is_http else not code:
            return Ending.GOOD
        return Ending.FAILED if is_backend_error(protocol, code) else Ending.NEITHER
    return Ending.FAILED if outcome in _BAD_ENDS else Ending.NEITHER
