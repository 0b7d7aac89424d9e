"""The scheduler: when and on which backend each request of a scheduled model begins.

Backends are compared by when a request would begin there and by a part of what its own execution
takes, from what is in flight there and from learnt costs. If the best one is full the request is
queued here, bound to no backend, although a slower one may be free. The slower one is used once the
wait of the last queued request would be longer than that part of an execution at the slower one.
`lb.balancing.waiting` decides which request is next, `lb.balancing.selection` compares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.capacity import NO_LIMIT
from lb.balancing.cost import MAX_EXTRAPOLATION, MIN_SAMPLES
from lb.balancing.division import BatchTime, divide
from lb.balancing.eligible_set import EligibleSet
from lb.balancing.estimate import Estimate
from lb.balancing.external_load import ExternalLoad
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_queue import ModelQueue
from lb.balancing.selection import ANY_LEAD_S, Selection
from lb.balancing.tuning import TUNING
from lb.balancing.unanswered import ignore_lost
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured
from lb.domain.schedule import (
    NO_DEADLINE,
    Ending,
    ModelBackendView,
    ModelQueueView,
    QueuePlan,
    RefusalReason,
    RequestClass,
    ScheduleRefused,
    Ticket,
    Wait,
)

Renew = Callable[[Ticket], tuple[QueuePlan, tuple[Backend, ...]] | None]
"""Gives the plan and the eligible backends of a queued request by the current snapshot. None: its
model is not scheduled any more."""
_SEVERAL: Final = 2
"""Stands for any number of ended requests above one."""
_MAX_MODEL_QUEUES: Final = 4096
"""Model queues beyond which idle ones are forgotten."""
_CLEANUP_MIN: Final = 64
"""The heap of expiries is not cleaned up for fewer void entries than this."""
_LATE_AT_ONCE: Final = 32
"""`next_due` refuses or checks at most this many late requests in a call. Clients choose their
deadlines, so those of all queued requests may pass together."""
_RENEWED_AT_ONCE: Final = 400
"""Queued requests that are moved to the sets of a new snapshot in one call: about a millisecond."""
_SCATTER: Final = 40503
_ARRIVALS_SKIPPED: Final = 0x10000 - 0x10000 // TUNING.arrivals_one_in
_AFFINITY_SLACK: Final = TUNING.affinity_slack
_NOT_QUEUED: Final = Wait.NONE
_BY_LIMIT: Final = Wait.LIMIT


class Scheduler:
    """Decides when and where requests begin. One for the process; it never blocks or awaits.

    A request of a scheduled model has a `Ticket`. It begins at once, is queued, or is refused. It
    is bound to a backend only when it begins there. How to use it:

    1. `offer` a ticket. The result is the backend where it begins now, or None: it is queued.
    2. Call `complete` exactly once when the attempt of a ticket that began has ended. The same
       ticket may then be offered again with `tried` extended. It keeps its place in time.
    3. Call `drop` when a queued request is not wanted any more, because its client has left.
    4. After `offer`, `complete`, `drop` and `follow`, and at `wake_at`: call `next_due` until it
       gives None and begin each ticket at `ticket.backend`. Then call `next_refused` until it gives
       None and answer each ticket with its refusal. Once per iteration of the event loop is enough.
    5. After a new snapshot: call `follow`, and `follow_rest` in later iterations of the event loop
       while `is_following`.

    The caller counts a ticket that begins on `Backend.in_flight` before it calls the scheduler
    again, and takes it off before `complete`. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._model_queues: dict[tuple[bytes, bytes], ModelQueue] = {}
        self._penalties: dict[Backend, BackendPenalty] = {}
        self._number = 0
        self._waiting = 0
        self._dirty: dict[EligibleSet, ModelQueue] = {}
        """Eligible sets that may have a queued request to begin."""
        self._wakes: list[tuple[float, int, EligibleSet, ModelQueue]] = []
        """A heap of the times at which eligible sets are to be checked again."""
        self._expiries: list[tuple[float, int, Ticket]] = []
        """A heap of the times at which queued requests have waited too long."""
        self._external_load = ExternalLoad()
        self._began: deque[Ticket] = deque()
        self._refused: deque[Ticket] = deque()
        self._renew: Renew | None = None
        self._retired: dict[EligibleSet, ModelQueue] = {}
        """Eligible sets of old snapshots whose queued requests are to be moved."""
        self.on_lost: Callable[[Ticket, float], None] = ignore_lost
        """Called with a ticket and the time when its backend is found never to answer it. It is not
        counted from then on. Its attempt goes on until `complete`."""
        self.is_as_before = False
        """The request that was queued last waits behind others: `wake_at` is what it was before."""
        self.on_room: Callable[[], None] = _ignore_room
        """Called when there may be room for a queued request because another one has ended."""

    @property
    def wake_at(self) -> float:
        """When to call `next_due` and `next_refused` though nothing ended; inf for never."""
        if self._began or self._dirty or self._refused:
            return 0.0
        at = NO_DEADLINE
        wakes = self._wakes
        while wakes:
            first = wakes[0]
            if first[0] == first[2].wake_at:
                at = first[0]
                break
            heappop(wakes)
        expiries = self._expiries
        while expiries and not _waits(expiries[0]):
            heappop(expiries)
        return min(at, expiries[0][0]) if expiries else at

    # Requests

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        """Place a request.

        Args:
            ticket: the request. It may have been offered before.
            now: the time.

        Returns:
            The backend where it begins now and is counted. None: it is queued.

        Raises:
            ScheduleRefused: it is not run.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always the queue is empty, nothing is
        # reserved, and a ranking knows which idle model backend is best. `_place` is the reference.
        self._number = ticket.number = number = self._number + 1
        request_class = ticket.request_class
        eligible_set: EligibleSet | None = request_class.eligible_set
        if eligible_set is None or eligible_set.is_retired or ticket.tried:
            eligible_set = self._model_queue(ticket, now).eligible_set(ticket, now)
        if not number * _SCATTER & _ARRIVALS_SKIPPED and request_class.model_queue.runs_in_order:
            eligible_set.on_arrival(now)
        ranking = eligible_set.ranking
        if ranking is not None and ranking.version == eligible_set.stats.version:
            model_backend = ranking.pick(ticket, now)
        elif eligible_set.queue.count:
            return self._enqueue(ticket, request_class.model_queue, eligible_set, now)
        elif not request_class.model_queue.reserves:
            in_order: bool = request_class.model_queue.runs_in_order
            model_backend = eligible_set.pick(ticket, now, in_order=in_order)
        else:
            model_backend = None
        if model_backend is None:
            return self._place(ticket, request_class.model_queue, eligible_set, now)
        model_backend.last_pick = number
        model_backend.begin_idle(ticket, now)
        if model_backend.is_watched:
            request_class.model_queue.began(ticket, model_backend, now)
        ticket.backend = backend = model_backend.backend
        return backend

    def _place(
        self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet, now: float
    ) -> Backend | None:
        """Place a request by `select` while none is queued; see `offer`."""
        is_reserved = False
        max_lead_s = eligible_set.max_lead_s
        if model_queue.reserves and ticket.priority > 0:
            is_reserved = model_queue.check_reserved(ticket.priority)
            max_lead_s = model_queue.max_lead_s(ticket.priority, is_reserved=is_reserved)
        decision = eligible_set.decide(ticket, now, max_lead_s=max_lead_s, is_reserved=is_reserved)
        model_backend = decision.chosen
        if ticket.deadline != NO_DEADLINE:
            decision = eligible_set.without_doubt(
                decision, ticket, now, max_lead_s=max_lead_s, is_reserved=is_reserved
            )
            model_backend = decision.chosen
            if eligible_set.seems_late(decision, ticket):
                decision = eligible_set.decide_by_end(
                    ticket, now, max_lead_s, is_reserved=is_reserved
                )
                model_backend = decision.chosen
                if eligible_set.is_too_late(ticket, now):
                    return self._begin_if_idle(ticket, model_queue, eligible_set, now)
                if (
                    model_backend is not None
                    and not model_backend.is_idle
                    and eligible_set.seems_late(decision, ticket)
                ):
                    # A request that may be late is not sent ahead of others that are in time.
                    model_backend = None
        if model_backend is None or (
            model_backend is not decision.best
            and model_queue.plan.rules.max_waiting
            and not decision.is_best(now)
        ):
            ticket.wait = _why(model_backend, is_reserved=is_reserved)
            is_sure = (
                max_lead_s == ANY_LEAD_S and ticket.deadline == NO_DEADLINE and not is_reserved
            )
            no_room = decision if model_backend is None and is_sure else None
            return self._enqueue(ticket, model_queue, eligible_set, now, no_room)
        self._begin(ticket, model_queue, model_backend, decision.estimate, now)
        return model_backend.backend

    def best(self, ticket: Ticket, now: float, home: Backend | None = None) -> Backend | None:
        """Choose where a request that cannot be queued goes: where it ends first, be there room or
        not.

        Args:
            ticket: the request. It is not to be offered; it may be begun by `start`.
            now: the time.
            home: the eligible backend that it stays on unless another one is clearly better.

        Returns:
            None: the best backend is at its limit for requests of all models.
        """
        # HOT PATH (benchmarks/bench_stream_relay.py). As in `offer`, a ranking most often knows.
        request_class = ticket.request_class
        known: EligibleSet | None = request_class.eligible_set
        if known is None or known.is_retired or ticket.tried:
            known = self._model_queue(ticket, now).eligible_set(ticket, now)
        eligible_set: EligibleSet = known
        model_queue: ModelQueue = request_class.model_queue
        if home is None and not (eligible_set.queue.count or model_queue.reserves):
            ranking = eligible_set.ranking
            if ranking is not None and ranking.version == eligible_set.stats.version:
                model_backend = ranking.pick(ticket, now)
            else:
                in_order = model_queue.runs_in_order
                model_backend = eligible_set.pick(ticket, now, in_order=in_order)
            if model_backend is not None:
                return model_backend.backend
        decision = eligible_set.decide(ticket, now)
        model_backend = decision.chosen
        if model_backend is None or not decision.is_best(now):
            model_backend = decision.best
        if model_backend is None:
            return None
        own = model_queue.model_backends.get(home) if home is not None else None
        if own is not None and own is not model_backend:
            takes_s = own.estimate(ticket.rows, ticket.size, now).ends_at - now
            if takes_s <= _AFFINITY_SLACK * (decision.best_estimate.ends_at - now):
                return own.backend
        return (
            None
            if model_backend.is_shut() and model_backend.backend is not home
            else model_backend.backend
        )

    def stays(self, ticket: Ticket, home: Backend, now: float) -> bool:
        """Whether `best` would leave another request like a ticket that began at its home. Most
        often no comparison is needed."""
        if len(ticket.eligible) == 1:
            return True
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        model_backend = model_queue.model_backends.get(home) if model_queue is not None else None
        if model_queue is None or model_backend is None:
            return False
        slots = model_backend.slots if model_backend.slots < NO_LIMIT else model_backend.instances
        load = model_backend.load
        if (
            load.in_flight < slots
            and load.cost.mean_s <= _AFFINITY_SLACK * model_queue.stats.best_s
        ):
            return True
        return self.best(ticket, now, home) is home

    def start(self, ticket: Ticket, backend: Backend, now: float) -> None:
        """Begin a request at one of its eligible backends without offering it. It counts there
        until it is `complete`."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `_begin` is written out.
        self._number = ticket.number = number = self._number + 1
        request_class = ticket.request_class
        eligible_set: EligibleSet | None = request_class.eligible_set
        if eligible_set is None or eligible_set.is_retired:
            self._model_queue(ticket, now).eligible_set(ticket, now)
        model_queue: ModelQueue = request_class.model_queue
        model_backend = model_queue.model_backends[backend]
        ticket.backend = backend
        model_backend.last_pick = number
        model_backend.begin_uncompared(ticket, now)
        if model_backend.is_watched:
            model_queue.began(ticket, model_backend, now)

    def hedge(self, ticket: Ticket, now: float) -> Backend | None:
        """Begin a second attempt beside the first one.

        Returns:
            A backend that was not tried. None: there is no room at once, or requests are queued.
        """
        model_queue = self._model_queue(ticket, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        if model_queue.waiting or model_queue.retired:
            return None
        is_reserved = model_queue.check_reserved(ticket.priority)
        max_lead_s = model_queue.max_lead_s(ticket.priority, is_reserved=is_reserved)
        decision = eligible_set.decide(ticket, now, max_lead_s=max_lead_s, is_reserved=is_reserved)
        model_backend = decision.chosen
        if model_backend is None or model_backend.backend in ticket.tried:
            return None
        self._number = ticket.number = self._number + 1
        self._begin(ticket, model_queue, model_backend, decision.estimate, now)
        return model_backend.backend

    def divide(
        self, ticket: Ticket, now: float, limit: int, most: int, preferred: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Divide a batch among instances that are idle now, if its answer comes sooner so.

        Nothing is divided while requests are queued, or fewer than half of the instances are idle:
        parts take more work than the whole, which is lost to others where there is much to do.

        Args:
            ticket: the whole batch. It is not offered.
            now: the time.
            limit: rows of one part at most. A batch of more is divided as soon as that is possible.
            most: parts at most.
            preferred: the numbers of rows that the model executes best, if any.

        Returns:
            The rows of each part, the largest first: they are to be offered in this order. Empty:
            it stays whole, or there is no division that is better than others.
        """
        if self._waiting:
            return ()
        eligible_set = self._model_queue(ticket, now).eligible_set(ticket, now)
        candidates = eligible_set.candidates(now)
        idle = [each.idle_instances for each in candidates]
        free = sum(idle)
        if free < 2 or 2 * free < sum([each.instances for each in candidates]):
            return ()
        spare_s = 2 * eligible_set.stats.usual.mean_s
        rows = ticket.rows
        times = [each.batch_time(rows, ticket.size, now, as_idle=False) for each in candidates]
        return _divided(candidates, times, idle, rows, limit, most, spare_s, preferred)

    def may_divide(
        self, ticket: Ticket, now: float, limit: int, most: int, preferred: Sequence[int] = ()
    ) -> bool:
        """Whether a batch would be divided if all instances were idle, or may be for all that is
        known: it is not known yet what executions take.

        Args:
            ticket: as for `divide`.
            now: the time.
            limit: as for `divide`.
            most: as for `divide`.
            preferred: as for `divide`.
        """
        eligible_set = self._model_queue(ticket, now).eligible_set(ticket, now)
        candidates = eligible_set.candidates(now)
        if any(each.load.cost.count < MIN_SAMPLES for each in candidates):
            return True
        instances = [each.instances for each in candidates]
        spare_s = 2 * eligible_set.stats.usual.mean_s
        rows = ticket.rows
        times = [each.batch_time(rows, ticket.size, now, as_idle=True) for each in candidates]
        return bool(_divided(candidates, times, instances, rows, limit, most, spare_s, preferred))

    def complete(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Count the end of the attempt of a ticket that began.

        Args:
            ticket: the request.
            now: the time.
            ending: how the attempt ended.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Nearly always nothing is queued, and the model
        # backend is not watched. `_complete` is the reference.
        model_backend: ModelBackend | None = ticket.model_backend
        if model_backend is None:
            self._complete_lost(ticket, now, ending)
            return
        if model_backend.is_watched or self._waiting:
            self._complete(ticket, model_backend, now, ending)
            return
        model_backend.end(ticket, now, ending)
        ticket.backend = None
        if model_backend.load.in_flight and model_backend.unanswered.review_at <= now:
            model_queue = self._model_queues[
                ticket.request_class.model, ticket.request_class.version
            ]
            self._review(ticket, model_queue, model_backend, now, ending)

    def _complete(self, ticket: Ticket, began_at: ModelBackend, now: float, ending: Ending) -> None:
        """Count the end of the attempt of a ticket that began, and whom it makes room for."""
        model_queue = self._model_queues[ticket.request_class.model, ticket.request_class.version]
        backend = ticket.backend
        assert backend is not None
        model_backend = model_queue.model_backends[backend]
        if began_at is model_backend:
            model_backend.end(ticket, now, ending)
        else:
            model_backend.end_inherited(ticket, now, ending)
        if model_backend.is_watched:
            model_queue.ended(ticket, model_backend, now)
        ticket.backend = None
        if model_backend.load.in_flight and model_backend.unanswered.review_at <= now:
            self._review(ticket, model_queue, model_backend, now, ending)
        if not self._waiting:
            return
        if backend.max_in_flight:
            self._mark_ready(self._model_queues.values(), now)
        elif len(model_queue.waiting) == 1:
            for eligible_set in model_queue.waiting:
                self._dirty[eligible_set] = model_queue
                eligible_set.freed += 1
                eligible_set.freed_at = model_backend
        else:
            self._mark_ready((model_queue,), now)
        self.on_room()

    def _review(
        self,
        ended: Ticket,
        model_queue: ModelQueue,
        model_backend: ModelBackend,
        now: float,
        ending: Ending,
    ) -> None:
        """Give up lost requests after one has ended at a model backend with overdue ones."""
        answered_from = model_backend.unanswered.answered_from(ended, ending)
        self._give_up(model_queue, model_backend, answered_from, now)

    def _give_up(
        self,
        model_queue: ModelQueue,
        model_backend: ModelBackend,
        answered_from: float | None,
        now: float,
    ) -> None:
        """Give up what is lost; see `ModelQueue.give_up_unanswered`."""
        for lost in model_queue.give_up_unanswered(model_backend, answered_from, now):
            self.on_lost(lost, now)
        self._mark_ready((model_queue,), now)

    def _complete_lost(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Note the end of an attempt that was given up as lost."""
        backend, ticket.backend = ticket.backend, None
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        if model_queue is not None and backend in model_queue.model_backends:
            model_queue.model_backends[backend].end_lost(ticket, now, ending)

    def _mark_ready(self, model_queues: Iterable[ModelQueue], now: float) -> None:
        """Note that there may be room for eligible sets that share backends. The first one that is
        checked takes it, so they are sorted by the urgency of their next request."""
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
        """Take a ticket out of its queue. One that is not queued is left alone."""
        if ticket.is_waiting:
            self._leave(
                ticket, self._model_queues[ticket.request_class.model, ticket.request_class.version]
            )
        else:
            self._take_back(ticket)

    def _take_back(self, ticket: Ticket) -> None:
        """Undo a decision about a ticket that the caller has not been given yet."""
        if ticket in self._began:
            self._began.remove(ticket)
            self._confirm_dispatch(ticket)
            self.complete(ticket, ticket.began_at, Ending.NEITHER)
        else:
            ticket.refused = None

    def next_due(self, now: float) -> Ticket | None:
        """Give the next ticket that begins now, at `ticket.backend`. It is counted already.

        A call checks a bounded number of late requests. Where others are left `wake_at` is not
        later than `now`: call it again in a later iteration of the event loop.
        """
        wakes = self._wakes
        while wakes and wakes[0][0] <= now:
            at, _, eligible_set, model_queue = heappop(wakes)
            if at == eligible_set.wake_at and eligible_set.queue.count:
                self._dirty[eligible_set] = model_queue
        dirty, began = self._dirty, self._began
        while dirty and not began and len(self._refused) < _LATE_AT_ONCE:
            eligible_set = next(iter(dirty))
            self._step(dirty[eligible_set], eligible_set, now)
        if not began:
            # An instance that is idle now is wanted by no other queued request: one that seemed
            # late may begin there.
            if self._expiries and self._expiries[0][0] <= now and not self._dirty:
                self._check_expiries(now)
            if not began:
                return None
        ticket = began.popleft()
        model_backend: ModelBackend | None = ticket.model_backend
        if model_backend is None:
            self._confirm_dispatch(ticket)
        else:
            model_backend.penalty.uncounted -= 1  # `_confirm_dispatch` is written out
        return ticket

    def _confirm_dispatch(self, ticket: Ticket) -> None:
        """From now on the caller counts a ticket that was due."""
        assert ticket.backend is not None
        penalty = self._penalties.get(ticket.backend)
        if penalty is not None and penalty.uncounted:
            penalty.uncounted -= 1

    def next_refused(self, now: float) -> Ticket | None:
        """Give the next queued request that is not run, with `ticket.refused`. It is not queued any
        more. A call checks as many late requests as `next_due` at most."""
        if not self._refused and self._expiries and self._expiries[0][0] <= now:
            self._check_expiries(now)
        while self._refused:
            ticket = self._refused.popleft()
            if ticket.refused is not None:
                return ticket
        return None

    def _check_expiries(self, now: float) -> None:
        """Begin or refuse some of the requests that may have waited too long. `wake_at` is not
        later than `now` where others are left."""
        expiries = self._expiries
        for _ in range(_LATE_AT_ONCE):
            if not expiries or expiries[0][0] > now:
                break
            entry = heappop(expiries)
            if _waits(entry):
                self._expire(entry[2], now)

    def _expire(self, ticket: Ticket, now: float) -> None:
        """Refuse a request that has waited too long, by the plan that holds now, or whose deadline
        has passed. Soon before its deadline it begins wherever an instance is idle."""
        model_queue = self._model_queues[ticket.request_class.model, ticket.request_class.version]
        if ticket.queued_at + model_queue.plan.rules.max_wait_s <= now:
            self._refuse(ticket, model_queue, RefusalReason.EXPIRED, now)
            return
        eligible_set: EligibleSet = ticket.eligible_set
        if ticket.deadline > now:
            if eligible_set.is_retired:
                self._expire_at(ticket, model_queue, ticket.deadline)
                return
            is_reserved = model_queue.check_reserved(ticket.priority)
            model_backend = eligible_set.idle(ticket, now, is_reserved=is_reserved)
            if model_backend is not None:
                estimate = model_backend.estimate(ticket.rows, ticket.size, now)
                self._dispatch(ticket, model_queue, eligible_set, model_backend, estimate, now)
                return
            if not eligible_set.is_too_late(ticket, now):
                self._expire_at(ticket, model_queue, ticket.deadline)
                return
        self._refuse(ticket, model_queue, RefusalReason.LATE, now)

    # The queue

    def _enqueue(
        self,
        ticket: Ticket,
        model_queue: ModelQueue,
        eligible_set: EligibleSet,
        now: float,
        no_room: Selection | None = None,
    ) -> Backend | None:
        """Queue a ticket, unless it is the one that begins now.

        Args:
            ticket: the request.
            model_queue: of its model.
            eligible_set: in whose queue it is to be.
            now: the time.
            no_room: the decision that nothing has room for it, where the queue is empty.

        Raises:
            ScheduleRefused: the queue is full, or the ticket cannot meet its deadline.
        """
        # HOT PATH (benchmarks/bench_schedule.py). Most are put behind others: nothing is to be
        # decided then. What follows is the reference. `Cost.predict` is written out.
        rules = model_queue.plan.rules
        stats = model_queue.stats
        usual = stats.usual
        if usual.count:
            work_s = usual.base_s + usual.row_s * ticket.rows
            if usual.byte_s:
                work_s = usual.with_bytes(work_s, ticket.size)
            most_s = MAX_EXTRAPOLATION * usual.mean_s
            ticket.work_s = work_s if work_s < most_s else most_s
        else:
            ticket.work_s = stats.best_s
        queue = eligible_set.queue
        count = queue.count
        waiting = self._waiting
        if (
            count
            and eligible_set.is_closed
            and eligible_set not in self._dirty
            and ticket.deadline == NO_DEADLINE
            and rules.max_wait_s == NO_DEADLINE
            and waiting + model_queue.others_waiting < rules.max_waiting
        ):
            self.is_as_before = True
            if ticket.wait is _NOT_QUEUED:
                ticket.wait = _BY_LIMIT
            ticket.position = count
            ticket.queued_at = now
            ticket.eligible_set = eligible_set
            queue.add(ticket)
            self._waiting = waiting + 1
            return None
        self.is_as_before = False
        is_due = ticket.deadline != NO_DEADLINE and eligible_set.queue.count > 0
        if is_due and model_queue.is_late(ticket, eligible_set, now):
            # What is idle now may be wanted by queued requests.
            is_reserved = model_queue.check_reserved(ticket.priority)
            if (
                eligible_set not in self._dirty
                or eligible_set.idle(ticket, now, is_reserved=is_reserved) is None
            ):
                return self._begin_if_idle(ticket, model_queue, eligible_set, now)
        if model_queue.waits + model_queue.others_waiting >= rules.max_waiting:
            victim = model_queue.victim(ticket, eligible_set)
            if victim is None:
                raise ScheduleRefused(RefusalReason.FULL, model_queue.room_in(eligible_set, now))
            self._refuse(victim, model_queue, RefusalReason.SHED, now)
        if ticket.wait is _NOT_QUEUED:
            ticket.wait = _BY_LIMIT
        ticket.position = eligible_set.queue.count
        ticket.queued_at = now
        # `_insert` is written out.
        ticket.eligible_set = eligible_set
        eligible_set.ranking = None
        eligible_set.queue.add(ticket)
        model_queue.waiting[eligible_set] = None
        self._waiting += 1
        self._expire_at(ticket, model_queue, ticket.deadline - model_queue.stats.best_s)
        if no_room is not None:
            model_queue.close(eligible_set, no_room, now)
            self._rest(model_queue, eligible_set)
            return None
        if eligible_set not in self._dirty:
            if eligible_set.is_closed and eligible_set.queue.count > 1:
                return None  # nothing has changed since there was no room
        elif len(self._dirty) > 1:
            return None  # others want the same room, in the order of their turns
        self._step(model_queue, eligible_set, now)
        if not ticket.is_waiting and self._began and self._began[-1] is ticket:
            self._confirm_dispatch(self._began.pop())
            return ticket.backend
        return None

    def _insert(self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        """Put a ticket into the queue of an eligible set."""
        ticket.eligible_set = eligible_set
        eligible_set.ranking = None
        eligible_set.queue.add(ticket)
        model_queue.waiting[eligible_set] = None
        self._waiting += 1

    def _begin_if_idle(
        self, ticket: Ticket, model_queue: ModelQueue, eligible_set: EligibleSet, now: float
    ) -> Backend:
        """Begin a new ticket that seems to be late, if an instance is idle. Nothing is lost by it,
        and its end tells how long executions take now.

        Raises:
            ScheduleRefused: no instance is idle.
        """
        model_backend = None
        if ticket.deadline > now:
            is_reserved = model_queue.check_reserved(ticket.priority)
            model_backend = eligible_set.idle(ticket, now, is_reserved=is_reserved)
        if model_backend is None:
            raise ScheduleRefused(RefusalReason.LATE, model_queue.room_in(eligible_set, now))
        estimate = model_backend.estimate(ticket.rows, ticket.size, now)
        self._begin(ticket, model_queue, model_backend, estimate, now)
        return model_backend.backend

    def _expire_at(self, ticket: Ticket, model_queue: ModelQueue, deadline: float) -> None:
        """Have a queued ticket checked by `_expire` when it has waited too long, and at a time that
        depends on its deadline."""
        at = min(ticket.queued_at + model_queue.plan.rules.max_wait_s, deadline)
        if at == NO_DEADLINE:
            return
        expiries = self._expiries
        if len(expiries) > 2 * self._waiting + _CLEANUP_MIN:
            expiries[:] = [entry for entry in expiries if _waits(entry)]
            heapify(expiries)
        heappush(expiries, (at, ticket.number, ticket))

    def _step(self, model_queue: ModelQueue, eligible_set: EligibleSet, now: float) -> None:
        """Dispatch the next request of an eligible set, refuse those before it that are late, or
        find that all have to wait. Where very many are late the set stays to be checked."""
        freed = eligible_set.freed if eligible_set.is_closed else 0
        wake_at = eligible_set.wake_at
        is_simple = freed == 1 and wake_at > now
        while eligible_set.queue.count:
            found = model_queue.due_after_end(eligible_set, now) if is_simple else None
            if found is None:
                found = model_queue.due(eligible_set, now)
            if found is None:
                break
            ticket, model_backend, estimate = found
            if model_backend is None:
                self._refuse(ticket, model_queue, RefusalReason.LATE, now)
                if len(self._refused) >= _LATE_AT_ONCE and eligible_set.queue.count:
                    self._dirty[eligible_set] = model_queue
                    return
                continue
            self._dispatch(ticket, model_queue, eligible_set, model_backend, estimate, now)
            is_full = model_backend.load.in_flight >= model_backend.limit
            if is_simple and is_full:
                # One place was free, and it is taken: nothing else has changed.
                eligible_set.is_closed = True
                eligible_set.freed = 0
                eligible_set.wake_at = wake_at if eligible_set.queue.count else NO_DEADLINE
                self._dirty.pop(eligible_set, None)
            elif eligible_set.queue.count:
                self._dirty[eligible_set] = model_queue
            return
        self._rest(model_queue, eligible_set)

    def _rest(self, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        """Leave an eligible set alone until something changes, or its time has come."""
        eligible_set.freed = 0
        self._dirty.pop(eligible_set, None)
        if eligible_set.queue.count and eligible_set.wake_at != NO_DEADLINE:
            self._number += 1
            heappush(self._wakes, (eligible_set.wake_at, self._number, eligible_set, model_queue))

    def _dispatch(
        self,
        ticket: Ticket,
        model_queue: ModelQueue,
        eligible_set: EligibleSet,
        model_backend: ModelBackend,
        estimate: Estimate,
        now: float,
    ) -> None:
        """Begin a queued ticket. `next_due` gives it to the caller."""
        # HOT PATH (benchmarks/bench_schedule.py). `_begin` and `_left` are written out.
        eligible_set.queue.serve(ticket)
        self._waiting -= 1
        if not eligible_set.queue.count:
            self._emptied(model_queue, eligible_set)
        ticket.backend = model_backend.backend
        model_backend.last_pick = ticket.number
        model_backend.begin(ticket, estimate, now)
        if model_backend.is_watched:
            model_queue.began(ticket, model_backend, now)
        self._began.append(ticket)
        model_backend.penalty.uncounted += 1

    def _begin(
        self,
        ticket: Ticket,
        model_queue: ModelQueue,
        model_backend: ModelBackend,
        estimate: Estimate,
        now: float,
    ) -> None:
        """Count a ticket that begins."""
        ticket.backend = model_backend.backend
        model_backend.last_pick = ticket.number
        model_backend.begin(ticket, estimate, now)
        if model_backend.is_watched:
            model_queue.began(ticket, model_backend, now)

    def _refuse(
        self, ticket: Ticket, model_queue: ModelQueue, refusal: RefusalReason, now: float
    ) -> None:
        """Take a ticket out of its queue. `next_refused` gives it to the caller."""
        eligible_set: EligibleSet = ticket.eligible_set
        self._leave(ticket, model_queue)
        ticket.refused = ScheduleRefused(refusal, model_queue.room_in(eligible_set, now))
        self._refused.append(ticket)

    def _leave(self, ticket: Ticket, model_queue: ModelQueue) -> None:
        """Take a ticket out of its queue."""
        eligible_set: EligibleSet = ticket.eligible_set
        eligible_set.queue.remove(ticket)
        self._left(model_queue, eligible_set)

    def _left(self, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        """Note that a queue has become shorter by one."""
        self._waiting -= 1
        if not eligible_set.queue.count:
            self._emptied(model_queue, eligible_set)

    def _emptied(self, model_queue: ModelQueue, eligible_set: EligibleSet) -> None:
        """Note that a queue has become empty."""
        if eligible_set.is_retired:
            model_queue.retired.pop(eligible_set, None)
            self._retired.pop(eligible_set, None)
            return
        model_queue.waiting.pop(eligible_set, None)
        self._dirty.pop(eligible_set, None)
        eligible_set.wake_at = NO_DEADLINE

    # Changes

    def _model_queue(self, ticket: Ticket, now: float) -> ModelQueue:
        """Find the model queue of a ticket, and have it know of the ticket's plan."""
        model_queue = self._model_queues.get((ticket.model, ticket.version))
        if model_queue is None:
            model_queue = self._new_model_queue(ticket, now)
        elif model_queue.plan is not ticket.plan:
            model_queue.apply(ticket.plan, now)
        ticket.request_class.model_queue = model_queue
        return model_queue

    def _new_model_queue(self, ticket: Ticket, now: float) -> ModelQueue:
        if len(self._model_queues) >= _MAX_MODEL_QUEUES:
            for each in tuple(self._model_queues.values()):
                if not (each.in_flight or each.waiting or each.retired):
                    self._forget(each, now)
        request_class = ticket.request_class
        model_queue = ModelQueue(
            request_class.model, request_class.version, request_class.plan, self._penalties
        )
        self._model_queues[request_class.model, request_class.version] = model_queue
        return model_queue

    def _forget(self, model_queue: ModelQueue, now: float) -> None:
        """Forget an idle model queue; `now` is for schedulers that tell others of it."""
        model_queue.drop_eligible_sets()
        del self._model_queues[model_queue.model, model_queue.version]

    def follow(self, renew: Renew, now: float) -> list[Ticket]:
        """Take over a new snapshot: plans, backends, limits.

        Queued requests are moved to the eligible sets of the new snapshot, the next ones first, a
        bounded number in a call. A request that is not moved yet stays queued and begins nowhere.
        See `follow_rest`.

        Args:
            renew: gives what the snapshot says of a queued request. The answer may depend on the
                model and on the tuple of eligible backends alone.
            now: the time.

        Returns:
            Tickets that are not queued any more since their model is not scheduled: place them
            otherwise.
        """
        self._renew = renew
        for model_queue in self._model_queues.values():
            for eligible_set in model_queue.waiting:
                self._dirty.pop(eligible_set, None)
            model_queue.retire()
            for eligible_set in model_queue.retired:
                self._retired[eligible_set] = model_queue
        gone = self.follow_rest(now)
        used = {
            backend
            for model_queue in self._model_queues.values()
            for backend in model_queue.model_backends
        }
        for backend in self._penalties.keys() - used:
            if not self._penalties[backend].measured:
                del self._penalties[backend]
        return gone

    @property
    def is_following(self) -> bool:
        """Whether queued requests of an old snapshot are left for `follow_rest`."""
        return bool(self._retired)

    def follow_rest(self, now: float) -> list[Ticket]:
        """Go on with the last `follow`, for about a millisecond.

        Returns:
            Tickets that are not queued any more; see `follow`.
        """
        renew = self._renew
        gone: list[Ticket] = []
        renewed: dict[int, RequestClass | None] = {}
        left = _RENEWED_AT_ONCE
        while left and self._retired and renew is not None:
            eligible_set, model_queue = next(iter(self._retired.items()))
            while left and eligible_set.queue.count:
                left -= 1
                ticket = eligible_set.queue.pop_next(now)
                self._left(model_queue, eligible_set)
                group = id(ticket.request_class)
                if group not in renewed:
                    found = renew(ticket)
                    renewed[group] = found and RequestClass(ticket.model, ticket.version, *found)
                request_class = renewed[group]
                if request_class is None:
                    gone.append(ticket)
                else:
                    self._move(ticket, model_queue, request_class, now)
        return gone

    def _move(
        self, ticket: Ticket, model_queue: ModelQueue, request_class: RequestClass, now: float
    ) -> None:
        """Queue a ticket by what a new snapshot says."""
        before_s = ticket.plan.rules.max_wait_s
        ticket.request_class = request_class
        request_class.model_queue = model_queue
        if model_queue.plan is not ticket.plan:
            model_queue.apply(ticket.plan, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        self._insert(ticket, model_queue, eligible_set)
        if ticket.plan.rules.max_wait_s < before_s:
            self._expire_at(ticket, model_queue, ticket.deadline)
        self._dirty[eligible_set] = model_queue

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """Take over what a backend says of its load, for all clients together.

        The load of other clients counts as far as learnt costs do not contain it, and less and less
        as the report ages.
        """
        self._external_load.on_report(backend, self._model_backends_at(backend), report)

    def in_flight_by_model(self, backend: Backend) -> dict[bytes, int]:
        """Count the requests in flight at a backend, by model."""
        model_backends = self._model_backends_at(backend)
        return {
            model: sum([model_backend.load.in_flight for model_backend in those])
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
        """Take over how long executions take as a backend has measured it, by model and version.
        Its model backends begin with that, as long as nothing was learnt of them."""
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
        """Forget what was learnt of a backend that is gone, or was restarted."""
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
                cost = model_backend.load.cost
                yield ModelBackendView(
                    model=model_queue.model,
                    version=model_queue.version,
                    backend=model_backend.backend,
                    in_flight=model_backend.load.in_flight,
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
        left = self._waiting
        for model_queue in self._model_queues.values():
            if not (idle or left):
                return
            if not (idle or model_queue.waiting or model_queue.retired):
                continue
            waiting: dict[int, int] = {}
            oldest = now
            for eligible_set in (*model_queue.waiting, *model_queue.retired):
                for priority, count in eligible_set.queue.by_priority().items():
                    waiting[priority] = waiting.get(priority, 0) + count
                oldest = min(oldest, eligible_set.queue.oldest_at())
            left -= sum(waiting.values())
            yield ModelQueueView(
                model=model_queue.model,
                version=model_queue.version,
                waiting=waiting,
                oldest_s=now - oldest,
            )


def _ignore_room() -> None:
    """Do nothing: who has no queue of its own asks at once."""


def _waits(entry: tuple[float, int, Ticket]) -> bool:
    """Whether a ticket in the heap of expiries is still queued, and for the same offer."""
    ticket = entry[2]
    return ticket.is_waiting and ticket.number == entry[1]


def _why(model_backend: ModelBackend | None, *, is_reserved: bool) -> Wait:
    """Why a ticket is queued that was offered while the queue was empty."""
    if model_backend is not None:
        return Wait.FASTER
    return Wait.RESERVED if is_reserved else Wait.LIMIT


def _divided(
    candidates: Sequence[ModelBackend],
    times: Sequence[BatchTime],
    free: Sequence[int],
    rows: int,
    limit: int,
    most: int,
    spare_s: float,
    preferred: Sequence[int],
) -> tuple[int, ...]:
    """The parts of a batch; see `divide`.

    Args:
        candidates: that could take it whole.
        times: how long an instance of each takes.
        free: instances of each that could take a part.
        rows: of the batch.
        limit: rows of one part at most.
        most: parts at most.
        spare_s: see `divide`.
        preferred: the numbers of rows that the model executes best, if any.
    """
    whole_s = inf
    usable: list[BatchTime] = []
    for model_backend, time, count in zip(candidates, times, free, strict=True):
        if rows <= limit:
            whole_s = min(whole_s, time.takes_s(rows))
        if time.row_s and not model_backend.is_shut():
            usable += [time] * count
    return divide(usable, rows, limit, most, whole_s, spare_s, preferred)
