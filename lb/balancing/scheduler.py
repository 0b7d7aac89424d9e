"""The scheduler: when and where each request of a scheduled model begins.

A request goes where it will end first, by what is under way there and by what its execution was
learnt to cost. Where that backend is full it waits here, bound to nothing, although a slower one
may be free: until so many wait that the slower one would be the first to end one of them. Who is
next of those that wait is decided by `lb.balancing.waiting`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.cost import MAX_EXTRAPOLATION
from lb.balancing.eligible_set import EligibleSet
from lb.balancing.external_load import ExternalLoad
from lb.balancing.model_backend import NO_LIMIT, NOT_AHEAD_S, YIELDING_LEAD_S, ModelBackend
from lb.balancing.model_queue import ModelQueue
from lb.balancing.unanswered import nobody_listens
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured
from lb.domain.schedule import (
    NO_DEADLINE,
    Ending,
    ModelBackendView,
    ModelQueueView,
    Plan,
    Refusal,
    ScheduleRefused,
    Ticket,
    Wait,
)

_SEVERAL: Final = 2
_MAX_MODEL_QUEUES: Final = 4096
"""Lines that are remembered; clients may name any version."""
_SPARE: Final = 64
"""Tickets in the heap of expiries that wait no more, and are not worth clearing away."""
_LATE_AT_ONCE: Final = 32
"""Tickets that `next_due` refuses, or looks at since their time has come, before it lets others go
on: clients choose their deadlines, so those of all that wait may pass together."""
_SCATTER: Final = 40503
_CAME_EVERY: Final = 0xC000
"""One of four requests tells how long they take. Which one goes by its number, times the golden
ratio of 2^16: a client that takes turns among models leaves none of them out."""
_AFFINITY_SLACK: Final = 1.5
"""Times what another backend takes that a request may take at its home."""


class QueueScheduler:
    """The one scheduler of a process; see `lb.domain.schedule.Scheduler`."""

    def __init__(self) -> None:
        self._model_queues: dict[tuple[bytes, bytes], ModelQueue] = {}
        self._penalties: dict[Backend, BackendPenalty] = {}
        self._number = 0
        self._waiting = 0
        self._dirty: dict[EligibleSet, ModelQueue] = {}
        """Pools that may have a ticket to begin."""
        self._wakes: list[tuple[float, int, EligibleSet, ModelQueue]] = []
        """Heap of when pools are to be looked at again."""
        self._expiries: list[tuple[float, int, Ticket]] = []
        """Heap of when those that wait have waited too long."""
        self._external_load = ExternalLoad()
        self._began: deque[Ticket] = deque()
        self._refused: deque[Ticket] = deque()
        self.on_lost: Callable[[Ticket, float], None] = nobody_listens

    @property
    def wake_at(self) -> float:
        """When `next_due` and `next_refused` want to be called though nothing ended."""
        if self._began or self._dirty:
            return 0.0
        at = NO_DEADLINE
        wakes = self._wakes
        while wakes and wakes[0][0] != wakes[0][2].wake_at:
            heappop(wakes)
        if wakes:
            at = wakes[0][0]
        expiries = self._expiries
        while expiries and not _waits(expiries[0]):
            heappop(expiries)
        return min(at, expiries[0][0]) if expiries else at

    # Requests

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        """Place a request: the backend where it begins now and is counted, or None: it waits.

        Raises:
            ScheduleRefused: it is not run.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always nobody waits, nobody has to yield,
        # and the best model backend has room: that takes no call beside `choose` and what counts.
        self._number = ticket.number = self._number + 1
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        if model_queue is None:
            model_queue = self._new_model_queue(ticket)
        elif model_queue.plan is not ticket.plan:
            model_queue.apply(ticket.plan, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        if not self._number * _SCATTER & _CAME_EVERY and model_queue.uses_fast_path:
            eligible_set.on_arrival(now)
        if eligible_set.queue.count:
            return self._join(ticket, model_queue, eligible_set, now)
        is_kept = False
        ahead_s = eligible_set.ahead_s
        if model_queue.reserves and ticket.priority > 0:
            is_kept = model_queue.is_kept(ticket.priority)
            ahead_s = NOT_AHEAD_S if is_kept and model_queue.is_pressed else YIELDING_LEAD_S
        model_backend = eligible_set.choose(ticket.rows, ticket.size, now, ahead_s, is_kept)
        if ticket.deadline != NO_DEADLINE:
            model_backend = eligible_set.avoid_doubted(ticket, model_backend, now, ahead_s, is_kept)
            if eligible_set.seems_late(ticket):
                model_backend = eligible_set.hurry(ticket, now, ahead_s, is_kept)
                if eligible_set.is_lost(ticket, now):
                    return self._try(ticket, model_queue, eligible_set, now)
                if (
                    model_backend is not None
                    and not model_backend.is_idle
                    and eligible_set.seems_late(ticket)
                ):
                    model_backend = None  # what may be late is not sent ahead of what is in time
        if model_backend is None or (
            model_backend is not eligible_set.best
            and model_queue.plan.rules.max_waiting
            and not eligible_set.is_best(now)
        ):
            ticket.wait = _why(model_backend, is_kept=is_kept)
            return self._join(ticket, model_queue, eligible_set, now)
        ticket.backend = backend = model_backend.backend
        model_backend.last_pick = ticket.number
        model_backend.begin(ticket, now)
        model_queue.began(ticket, model_backend, now)
        return backend

    def best(self, ticket: Ticket, now: float, home: Backend | None = None) -> Backend | None:
        """Where a request that cannot wait is to go; see `Scheduler.best`."""
        model_queue = self._model_queue(ticket, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        model_backend = eligible_set.choose(ticket.rows, ticket.size, now)
        if model_backend is None or not eligible_set.is_best(now):
            model_backend = eligible_set.best
        if model_backend is None:
            return None
        if home is None:
            model_backend = eligible_set.underexplored(model_backend) or model_backend
        own = model_queue.model_backends.get(home) if home is not None else None
        if own is not None and own is not model_backend:
            takes_s = own.estimate(ticket.rows, ticket.size, now) - now
            if takes_s <= _AFFINITY_SLACK * (eligible_set.best_end - now):
                return own.backend
        return (
            None
            if model_backend.is_shut() and model_backend.backend is not home
            else model_backend.backend
        )

    def stays(self, ticket: Ticket, home: Backend, now: float) -> bool:
        """Whether another one would stay at its home; see `Scheduler.stays`."""
        if len(ticket.eligible) == 1:
            return True
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        model_backend = model_queue.model_backends.get(home) if model_queue is not None else None
        if model_queue is None or model_backend is None:
            return False
        slots = model_backend.slots if model_backend.slots < NO_LIMIT else model_backend.instances
        if (
            model_backend.in_flight < slots
            and model_backend.cost.mean_s <= _AFFINITY_SLACK * model_queue.stats.best_s
        ):
            return True
        return self.best(ticket, now, home) is home

    def start(self, ticket: Ticket, backend: Backend, now: float) -> None:
        """A request begins without having been offered; see `Scheduler.start`."""
        self._number = ticket.number = self._number + 1
        model_queue = self._model_queue(ticket, now)
        model_queue.eligible_set(ticket, now)
        model_backend = model_queue.model_backends[backend]
        model_backend.estimate(ticket.rows, ticket.size, now)
        self._begin(ticket, model_queue, model_backend, now)

    def hedge(self, ticket: Ticket, now: float) -> Backend | None:
        """Begin a second attempt, or do not; see `Scheduler.hedge`."""
        model_queue = self._model_queue(ticket, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        if model_queue.waiting:
            return None
        yields = model_queue.reserves and ticket.priority > 0
        is_kept = yields and model_queue.is_kept(ticket.priority)
        ahead_s = YIELDING_LEAD_S if yields else NO_DEADLINE
        model_backend = eligible_set.choose(ticket.rows, ticket.size, now, ahead_s, is_kept)
        if model_backend is None or model_backend.backend in ticket.tried:
            return None
        self._number = ticket.number = self._number + 1
        self._begin(ticket, model_queue, model_backend, now)
        return model_backend.backend

    def complete(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """The attempt of a ticket that began is over."""
        if ticket.model_backend is None:
            self._complete_lost(ticket, now, ending)
            return
        model_queue = self._model_queues[ticket.model, ticket.version]
        backend = ticket.backend
        assert backend is not None
        model_backend = model_queue.model_backends[backend]
        if ticket.model_backend is model_backend:
            model_backend.end(ticket, now, ending)
        else:
            model_backend.end_inherited(ticket, now, ending)
        model_queue.ended(ticket, model_backend, now)
        ticket.backend = None
        if model_backend.in_flight and model_backend.unanswered.review_at <= now:
            for lost in model_queue.find_lost(ticket, model_backend, now, ending):
                self.on_lost(lost, now)
            self._mark_ready((model_queue,), now)
        if self._waiting:
            if backend.max_in_flight:
                self._mark_ready(self._model_queues.values(), now)
            elif len(model_queue.waiting) == 1:
                for eligible_set in model_queue.waiting:
                    self._dirty[eligible_set] = model_queue
                    eligible_set.freed += 1
            else:
                self._mark_ready((model_queue,), now)

    def _complete_lost(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """The attempt of a ticket that was given up is over after all."""
        backend, ticket.backend = ticket.backend, None
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        if model_queue is not None and backend in model_queue.model_backends:
            model_queue.model_backends[backend].end_lost(ticket, now, ending)

    def _mark_ready(self, model_queues: Iterable[ModelQueue], now: float) -> None:
        """There may be room for pools that share backends. Whoever is looked at first takes it: let
        that be the one whose next ticket is most urgent."""
        waiting = [
            (eligible_set.queue.urgency(now), eligible_set, model_queue)
            for model_queue in model_queues
            for eligible_set in model_queue.waiting
        ]
        waiting.sort(key=itemgetter(0))
        for _, eligible_set, model_queue in waiting:
            self._dirty.pop(eligible_set, None)
            self._dirty[eligible_set] = model_queue
            eligible_set.freed = _SEVERAL

    def drop(self, ticket: Ticket) -> None:
        """A ticket that waits is wanted no more; one that does not wait is left alone."""
        if not ticket.is_waiting:
            self._take_back(ticket)
            return
        model_queue = self._model_queues[ticket.model, ticket.version]
        self._leave(ticket, model_queue, model_queue.eligible_set(ticket, 0.0))

    def _take_back(self, ticket: Ticket) -> None:
        """Have what was decided about a ticket not happen, if nobody was told yet."""
        if ticket in self._began:
            self._began.remove(ticket)
            self._confirm_dispatch(ticket)
            self.complete(ticket, ticket.began_at, Ending.NEITHER)
        else:
            ticket.refused = None

    def next_due(self, now: float) -> Ticket | None:
        """The next ticket that begins now, at `ticket.backend`; see `Scheduler`."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now:
            at, _, eligible_set, model_queue = heappop(wakes)
            if at == eligible_set.wake_at and eligible_set.queue.count:
                self._dirty[eligible_set] = model_queue
        while self._dirty and not self._began and len(self._refused) < _LATE_AT_ONCE:
            eligible_set, model_queue = next(iter(self._dirty.items()))
            self._step(model_queue, eligible_set, now)
        if not self._began:
            # An instance that is idle still is wanted by nobody else.
            if self._expiries and self._expiries[0][0] <= now and not self._dirty:
                self._check_expiries(now)
            if not self._began:
                return None
        ticket = self._began.popleft()
        self._confirm_dispatch(ticket)
        return ticket

    def _confirm_dispatch(self, ticket: Ticket) -> None:
        """Whoever asked counts a ticket that was due."""
        assert ticket.backend is not None
        penalty = self._penalties.get(ticket.backend)
        if penalty is not None and penalty.due:
            penalty.due -= 1

    def next_refused(self, now: float) -> Ticket | None:
        """The next waiting ticket that is not run, with `ticket.refused`; see `Scheduler`."""
        if not self._refused and self._expiries and self._expiries[0][0] <= now:
            self._check_expiries(now)
        while self._refused:
            ticket = self._refused.popleft()
            if ticket.refused is not None:
                return ticket
        return None

    def _check_expiries(self, now: float) -> None:
        """Have some of those that may have waited for too long begin or be refused. `wake_at` is
        not later than `now` where others are left."""
        expiries = self._expiries
        for _ in range(_LATE_AT_ONCE):
            if not expiries or expiries[0][0] > now:
                break
            entry = heappop(expiries)
            if _waits(entry):
                self._expire(entry[2], now)

    def _expire(self, ticket: Ticket, now: float) -> None:
        """Refuse a ticket that has waited for too long, by the plan that holds now, or whose
        deadline has passed. Soon before that it begins wherever an instance is idle."""
        model_queue = self._model_queues[ticket.model, ticket.version]
        if ticket.joined_at + model_queue.plan.rules.max_wait_s <= now:
            self._refuse(ticket, model_queue, Refusal.EXPIRED, now)
            return
        eligible_set = model_queue.eligible_set(ticket, now)
        if ticket.deadline > now:
            model_backend = eligible_set.idle(ticket, now, model_queue.is_kept(ticket.priority))
            if model_backend is not None:
                self._begin_waiting(ticket, model_queue, eligible_set, model_backend, now)
                return
            if not eligible_set.is_lost(ticket, now):
                self._expire_at(ticket, model_queue, ticket.deadline)
                return
        self._refuse(ticket, model_queue, Refusal.LATE, now)

    # Waiting

    def _join(
        self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet, now: float
    ) -> Backend | None:
        """Have a ticket wait, unless it is the one that begins now."""
        rules = model_queue.plan.rules
        usual = model_queue.stats.usual
        ticket.work_s = model_queue.stats.best_s
        if usual.count:
            work_s = usual.predict(ticket.rows, ticket.size)
            most_s = MAX_EXTRAPOLATION * usual.mean_s
            ticket.work_s = work_s if work_s < most_s else most_s
        is_due = ticket.deadline != NO_DEADLINE and eligible_set.queue.count > 0
        if is_due and model_queue.is_late(ticket, eligible_set, now):
            # What is idle now may be wanted by those that wait.
            is_kept = model_queue.is_kept(ticket.priority)
            if eligible_set not in self._dirty or eligible_set.idle(ticket, now, is_kept) is None:
                return self._try(ticket, model_queue, eligible_set, now)
        if model_queue.waits >= rules.max_waiting:
            victim = model_queue.victim(ticket, eligible_set)
            if victim is None:
                raise ScheduleRefused(Refusal.FULL, model_queue.room_in(eligible_set, now))
            self._refuse(victim, model_queue, Refusal.SHED, now)
        if ticket.wait is Wait.NONE:
            ticket.wait = Wait.LIMIT
        ticket.position = eligible_set.queue.count
        ticket.joined_at = now
        eligible_set.queue.add(ticket)
        model_queue.waiting[eligible_set] = None
        self._waiting += 1
        self._expire_at(ticket, model_queue, ticket.deadline - model_queue.stats.best_s)
        if eligible_set not in self._dirty:
            if eligible_set.is_closed and eligible_set.queue.count > 1:
                return None  # nothing has changed since there was no room
        elif len(self._dirty) > 1:
            return None  # others wait for the same room, in the order of their turns
        self._step(model_queue, eligible_set, now)
        if not ticket.is_waiting and self._began and self._began[-1] is ticket:
            self._confirm_dispatch(self._began.pop())
            return ticket.backend
        return None

    def _try(
        self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet, now: float
    ) -> Backend:
        """Begin a new ticket that seems to be late, if an instance is idle: nothing is lost by it,
        and its end tells how long executions take now.

        Raises:
            ScheduleRefused: none is.
        """
        model_backend = None
        if ticket.deadline > now:
            model_backend = eligible_set.idle(ticket, now, model_queue.is_kept(ticket.priority))
        if model_backend is None:
            raise ScheduleRefused(Refusal.LATE, model_queue.room_in(eligible_set, now))
        self._begin(ticket, model_queue, model_backend, now)
        return model_backend.backend

    def _expire_at(self, ticket: Ticket, model_queue: ModelQueue, deadline: float) -> None:
        """Have a ticket that waits looked at by `_expire` when it has waited for too long, and at a
        time that has to do with its deadline."""
        at = min(ticket.joined_at + model_queue.plan.rules.max_wait_s, deadline)
        if at == NO_DEADLINE:
            return
        expiries = self._expiries
        if len(expiries) > 2 * self._waiting + _SPARE:
            expiries[:] = [entry for entry in expiries if _waits(entry)]
            heapify(expiries)
        heappush(expiries, (at, ticket.number, ticket))

    def _step(self, model_queue: ModelQueue, eligible_set: EligibleSet, now: float) -> None:
        """Begin the next ticket of a pool, refuse those before it that are late, or find that all
        have to wait. Where very many are late the pool stays to be looked at."""
        freed = eligible_set.freed if eligible_set.is_closed else 0
        wake_at = eligible_set.wake_at
        while eligible_set.queue.count:
            found = model_queue.due(eligible_set, now)
            if found is None:
                break
            ticket, model_backend = found
            if model_backend is None:
                self._refuse(ticket, model_queue, Refusal.LATE, now)
                if len(self._refused) >= _LATE_AT_ONCE and eligible_set.queue.count:
                    self._dirty[eligible_set] = model_queue
                    return
                continue
            self._begin_waiting(ticket, model_queue, eligible_set, model_backend, now)
            if freed == 1 and model_backend.in_flight >= model_backend.limit and wake_at > now:
                # One place was free, and it is taken: nothing else has changed.
                eligible_set.is_closed = True
                eligible_set.freed = 0
                eligible_set.wake_at = wake_at if eligible_set.queue.count else NO_DEADLINE
                self._dirty.pop(eligible_set, None)
            elif eligible_set.queue.count:
                self._dirty[eligible_set] = model_queue
            return
        eligible_set.freed = 0
        self._dirty.pop(eligible_set, None)
        if eligible_set.queue.count and eligible_set.wake_at != NO_DEADLINE:
            self._number += 1
            heappush(self._wakes, (eligible_set.wake_at, self._number, eligible_set, model_queue))

    def _begin_waiting(
        self,
        ticket: Ticket,
        model_queue: ModelQueue,
        eligible_set: EligibleSet,
        model_backend: ModelBackend,
        now: float,
    ) -> None:
        eligible_set.queue.serve(ticket)
        self._left(model_queue, eligible_set)
        self._begin(ticket, model_queue, model_backend, now)
        self._began.append(ticket)
        model_backend.penalty.due += 1

    def _begin(
        self, ticket: Ticket, model_queue: ModelQueue, model_backend: ModelBackend, now: float
    ) -> None:
        ticket.backend = model_backend.backend
        model_backend.last_pick = ticket.number
        model_backend.begin(ticket, now)
        model_queue.began(ticket, model_backend, now)

    def _refuse(
        self, ticket: Ticket, model_queue: ModelQueue, refusal: Refusal, now: float
    ) -> None:
        eligible_set = model_queue.eligible_set(ticket, now)
        self._leave(ticket, model_queue, eligible_set)
        ticket.refused = ScheduleRefused(refusal, model_queue.room_in(eligible_set, now))
        self._refused.append(ticket)

    def _leave(self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        eligible_set.queue.remove(ticket)
        self._left(model_queue, eligible_set)

    def _left(self, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        self._waiting -= 1
        if not eligible_set.queue.count:
            del model_queue.waiting[eligible_set]
            self._dirty.pop(eligible_set, None)
            eligible_set.wake_at = NO_DEADLINE

    # What is configured, and what is told

    def _model_queue(self, ticket: Ticket, now: float) -> ModelQueue:
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        if model_queue is None:
            model_queue = self._new_model_queue(ticket)
        elif model_queue.plan is not ticket.plan:
            model_queue.apply(ticket.plan, now)
        return model_queue

    def _new_model_queue(self, ticket: Ticket) -> ModelQueue:
        if len(self._model_queues) >= _MAX_MODEL_QUEUES:
            for key, model_queue in tuple(self._model_queues.items()):
                if not model_queue.stats.in_flight and not model_queue.waiting:
                    del self._model_queues[key]
        model_queue = ModelQueue(ticket.model, ticket.version, ticket.plan, self._penalties)
        self._model_queues[ticket.model, ticket.version] = model_queue
        return model_queue

    def follow(
        self, renew: Callable[[Ticket], tuple[Plan, tuple[Backend, ...]] | None], now: float
    ) -> list[Ticket]:
        """Another snapshot: plans, backends, limits; see `Scheduler.follow`."""
        gone: list[Ticket] = []
        for model_queue in self._model_queues.values():
            tickets = [
                ticket for eligible_set in model_queue.waiting for ticket in eligible_set.queue
            ]
            for eligible_set in model_queue.waiting:
                self._dirty.pop(eligible_set, None)
                eligible_set.wake_at = NO_DEADLINE
            self._waiting -= len(tickets)
            model_queue.restart()
            renewed: dict[int, tuple[Plan, tuple[Backend, ...]] | None] = {}
            for ticket in tickets:
                ticket.is_waiting = False
                group = id(ticket.eligible)
                if group not in renewed:
                    renewed[group] = renew(ticket)
                found = renewed[group]
                if found is None:
                    gone.append(ticket)
                    continue
                self._stay(ticket, model_queue, found, now)
        used = {
            backend
            for model_queue in self._model_queues.values()
            for backend in model_queue.model_backends
        }
        for backend in self._penalties.keys() - used:
            if not self._penalties[backend].measured:
                del self._penalties[backend]
        return gone

    def _stay(
        self,
        ticket: Ticket,
        model_queue: ModelQueue,
        found: tuple[Plan, tuple[Backend, ...]],
        now: float,
    ) -> None:
        """Have a ticket wait with what another snapshot says."""
        before_s = ticket.plan.rules.max_wait_s
        ticket.plan, ticket.eligible = found
        if model_queue.plan is not ticket.plan:
            model_queue.apply(ticket.plan, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        eligible_set.queue.add(ticket)
        if ticket.plan.rules.max_wait_s < before_s:
            self._expire_at(ticket, model_queue, ticket.deadline)
        model_queue.waiting[eligible_set] = None
        self._dirty[eligible_set] = model_queue
        self._waiting += 1

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """A backend says how much it has to do; see `Scheduler`."""
        self._external_load.on_report(backend, self._model_backends_at(backend), report)

    def in_flight_by_model(self, backend: Backend) -> dict[bytes, int]:
        """Requests that are under way at a backend, by model."""
        model_backends = self._model_backends_at(backend)
        return {
            model: sum([model_backend.in_flight for model_backend in those])
            for model, those in model_backends.items()
        }

    def _model_backends_at(self, backend: Backend) -> dict[bytes, list[ModelBackend]]:
        found: dict[bytes, list[ModelBackend]] = {}
        for model_queue in self._model_queues.values():
            model_backend = model_queue.model_backends.get(backend)
            if model_backend is not None:
                found.setdefault(model_queue.model, []).append(model_backend)
        return found

    def assume(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured], now: float
    ) -> None:
        """A backend says how long executions take; see `Scheduler`."""
        penalty = self._penalties.get(backend)
        if penalty is None:
            penalty = self._penalties[backend] = BackendPenalty(backend)
        penalty.measured = measured
        for model_queue in self._model_queues.values():
            model_backend = model_queue.model_backends.get(backend)
            found = penalty.measured_of(model_queue.model, model_queue.version)
            if model_backend is not None and found is not None:
                model_backend.assume(found, now)

    def forget(self, backend: Backend) -> None:
        """A backend is gone, or was restarted: nothing learnt of it holds."""
        for model_queue in self._model_queues.values():
            model_queue.forget(backend)
        self._external_load.forget(backend)
        penalty = self._penalties.get(backend)
        if penalty is not None:
            penalty.factor = 1.0
            penalty.measured = {}

    # Views

    def model_backends(self, models: Collection[bytes] | None = None) -> Iterator[ModelBackendView]:
        """Every model backend that is known of; with `models`, those of models of these names."""
        for model_queue in self._model_queues.values():
            if models is not None and model_queue.model not in models:
                continue
            for model_backend in model_queue.model_backends.values():
                cost = model_backend.cost
                yield ModelBackendView(
                    model=model_queue.model,
                    version=model_queue.version,
                    backend=model_backend.backend,
                    in_flight=model_backend.in_flight,
                    limit=model_backend.shown_limit,
                    expected_s=cost.predict(1, 0),
                    row_s=cost.row_s,
                    learnt=cost.count - cost.assumed,
                    slowed=1.0
                    if model_backend.external_load is None
                    else model_backend.external_load.factor,
                )

    def model_queues(self, now: float, *, idle: bool = True) -> Iterator[ModelQueueView]:
        """Every model queue that is known of; without `idle`, those in which requests wait."""
        for model_queue in self._model_queues.values():
            if not (idle or model_queue.waiting):
                continue
            waiting: dict[int, int] = {}
            oldest = now
            for eligible_set in model_queue.waiting:
                for priority, count in eligible_set.queue.by_priority().items():
                    waiting[priority] = waiting.get(priority, 0) + count
                oldest = min(oldest, eligible_set.queue.oldest_at())
            yield ModelQueueView(
                model=model_queue.model,
                version=model_queue.version,
                waiting=waiting,
                oldest_s=now - oldest,
            )


def _waits(entry: tuple[float, int, Ticket]) -> bool:
    """Whether a ticket in the heap of expiries still waits, and for the same."""
    ticket = entry[2]
    return ticket.is_waiting and ticket.number == entry[1]


def _why(model_backend: ModelBackend | None, *, is_kept: bool) -> Wait:
    """Why a ticket waits that was offered while nobody waited."""
    if model_backend is not None:
        return Wait.FASTER
    return Wait.RESERVED if is_kept else Wait.LIMIT
