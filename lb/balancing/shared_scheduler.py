"""The scheduler of one of several workers: it decides by what all of them have in flight.

What other workers have in flight is added to the load of the model backends, so that no decision
differs from that of a single process. Executions that others have seen are learnt from. Each worker
queues the requests of its own clients. A worker lets another one dispatch first if that one's next
request is more urgent, and rings for it when something has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappush
from math import inf
from typing import Any, Final

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.eligible_set import STARVING, EligibleSet, Waits, overtakes
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_queue import ModelQueue
from lb.balancing.scheduler import Renew, Scheduler
from lb.balancing.selection import ANY_LEAD_S
from lb.balancing.shared_load import SharedLoad
from lb.balancing.tenant_times import TenantTimes
from lb.balancing.tuning import TUNING
from lb.domain.backend import Backend
from lb.domain.schedule import Ending, ModelBackendView, Ticket
from lb.sharing.board import Board, Entry, Values, key_of
from lb.sharing.usage import ClientUsage, UsageTable

_CONFIDENT_SAMPLES: Final = TUNING.confident_samples
_NEWS_S: Final = TUNING.learn_after_s
_GIVE_WAY_S: Final = TUNING.give_way_s
_GIVE_WAY_AGAIN_S: Final = TUNING.give_way_again_s
_FRESH_S: Final = TUNING.fresh_s
_TELL_ARRIVAL_S: Final = TUNING.tell_arrival_s


class _SeenEntry:
    """An entry of another worker as it was counted here."""

    __slots__ = ("count", "ends", "high", "key", "number", "rows", "samples", "work_s", "worker")

    def __init__(self, worker: int, number: int) -> None:
        self.worker = worker
        self.number = number
        self.key = 0
        """0: nothing was read."""
        self.count = 0
        self.high = 0
        self.rows = 0
        self.ends = 0
        self.samples = 0
        self.work_s = 0.0


class _SharedBackend:
    """A backend with a limit of its own: what was written of it, and what others have in flight."""

    __slots__ = ("count", "own_entry", "penalty")

    def __init__(self, penalty: BackendPenalty) -> None:
        self.penalty = penalty
        self.count = 0
        """Requests of other workers that `penalty.uncounted` contains."""
        self.own_entry = Entry(key_of(b"limit", *_names(penalty.backend)))

    @property
    def own_count(self) -> int:
        """Requests of this worker that count, with those that are to begin."""
        backend = self.penalty.backend
        return backend.in_flight - backend.set_aside + self.penalty.uncounted - self.count


class _SharedQueue:
    """A model queue: what was written of it, and the next requests of the others."""

    __slots__ = (
        "ended", "ended_set", "gave_way_at", "gave_way_reads", "gave_way_to", "others",
        "own_entry", "sets", "tenants", "told_arrivals", "told_at",
    )  # fmt: skip

    def __init__(self, key: int) -> None:
        self.own_entry = Entry(key)
        self.others: dict[int, Waits] = {}
        """What each worker has queued that has anything."""
        self.sets: dict[int, int] = {}
        """The key of the eligible set of these requests; 0 where they are of several."""
        self.tenants: dict[int, ClientUsage] = {}
        """The tenant whose turn it is in each of them, where tenants have shares."""
        self.ended: dict[Backend, int] = {}
        """Requests of this worker that have ended, and in whose place it has begun none so far."""
        self.ended_set: EligibleSet | None = None
        """The eligible set of these requests; None where they were of several."""
        self.gave_way_to: Waits | None = None
        self.gave_way_at = 0.0
        self.gave_way_reads = 0
        """`Board.reads_of` that worker then."""
        self.told_arrivals = 0
        """Arrivals that the tail was learnt from when others were told of one last."""
        self.told_at = 0.0
        """When that was."""

    def first(self, eligible_set: EligibleSet, now: float) -> int:
        """The worker with the most urgent request; others must have some."""
        if len(self.others) == 1:
            return next(iter(self.others))
        return min(self.others, key=lambda worker: eligible_set.order(self.waits_of(worker), now))

    def waits_of(self, worker: int) -> Waits:
        """What a worker has queued. The time of its tenant is that of now, since other workers
        serve the same tenant."""
        waits = self.others[worker]
        tenant = self.tenants.get(worker)
        if tenant is None or waits[1] == STARVING:
            return waits
        return waits[0], tenant.latest(), waits[2]


class SharedScheduler(Scheduler):
    """The scheduler of a worker; `Scheduler` says how to use it. Besides:

    - Call `tick` ten times a second.
    - Have `on_untold` call `tell_untold` at the end of an iteration of the event loop.
    - Have `ring` wake another worker. The one that is woken calls `rung`, and then `next_due`.
    """

    def __init__(self, board: Board, usage: UsageTable | None = None) -> None:
        """
        Args:
            board: tells what each worker has in flight and queued.
            usage: tells what tenants have had; None: each worker keeps their shares by itself.
        """
        super().__init__()
        self._board = board
        self._usage = usage
        self._shared: dict[int, SharedLoad] = {}
        """By key."""
        self._loads: dict[ModelQueue, dict[Backend, SharedLoad]] = {}
        self._limited: dict[int, _SharedBackend] = {}
        """Backends with limits of their own, by key."""
        self._limits: dict[Backend, _SharedBackend] = {}
        """What `_limited` has, by backend."""
        self._queues: dict[ModelQueue, _SharedQueue] = {}
        self._queue_keys: dict[int, ModelQueue] = {}
        self._seen: list[list[_SeenEntry]] = []
        """What was read last, by worker and number."""
        self._others_at: list[SharedLoad] = []
        """Model backends at which others have requests in flight, as of the last tick."""
        self._read_at = 0.0
        """When all changes were read last."""
        self._told_waiting = 0
        self._told_at = 0.0
        """When others were told of all that has changed here last."""
        self._untold_loads: dict[SharedLoad, None] = {}
        """Model backends of which others are to be told."""
        self._untold_queues: dict[ModelQueue, _SharedQueue] = {}
        """Model queues of which they are to be told."""
        self._ended: dict[ModelQueue, _SharedQueue] = {}
        """Model queues without a queued request of which requests have ended since others were told
        of all."""
        self._untold_at = inf
        """When the first change was made that others are to be told of."""
        self._rang: dict[int, int] = {}
        """How often others had read the board when this worker rang for them last."""
        self._is_rung = False
        """Another worker has rung, and room that is left is to be passed on."""
        self.ring: Callable[[int], None] = _ring_nobody
        """Wakes the worker with that index."""
        self.on_untold: Callable[[], object] = self.tell_untold
        """Called when there are changes that others are to be told of: have `tell_untold` called at
        the end of this iteration of the event loop. Without a loop that is done at once."""

    # Requests

    def offer(self, ticket: Ticket, now: float) -> Backend | None:
        """Place a request; see `Scheduler`. It is queued behind requests of other workers that are
        queued already."""
        # Nearly always the eligible set is known, and `_prepare` would change nothing.
        request_class = ticket.request_class
        eligible_set: EligibleSet | None = request_class.eligible_set
        if eligible_set is None or eligible_set.is_retired or ticket.tried:
            model_queue = self._prepare(ticket, now)
            eligible_set = model_queue.eligible_set(ticket, now)
        else:
            model_queue = request_class.model_queue
            if not 0.0 <= now - self._read_at < _FRESH_S:
                self._read(now)
        queue = self._queues[model_queue]
        if queue.others and not eligible_set.queue.count:
            self._number = ticket.number = self._number + 1
            backend = self._enqueue(ticket, model_queue, eligible_set, now)
        else:
            backend = super().offer(ticket, now)
        arrivals = model_queue.stats.arrivals
        if arrivals != queue.told_arrivals and now - queue.told_at > _TELL_ARRIVAL_S:
            queue.told_arrivals = arrivals
            queue.told_at = now
            entry = queue.own_entry
            entry.took_s = model_queue.stats.arrival_s
            entry.samples += 1
            self._board.write_sample(entry)
            self._board.write(entry)
        if backend is not None and not queue.own_entry.count:
            # Nearly always nobody has given a limit, so nothing is to be checked again.
            model_backend: ModelBackend | None = ticket.model_backend
            if model_backend is not None and not (model_backend.is_exact or backend.max_in_flight):
                if model_queue.index is not None:
                    self._tell_begin(model_queue, model_backend, now)
                else:
                    self._untold_loads[self._load(model_queue, model_backend, now)] = None
                    self._tell_soon(now)
                return backend
        # Others may take the last place of each backend meanwhile; more often is not worth asking.
        tries_left = len(eligible_set.model_backends)
        is_undone = False
        while backend is not None:
            self._tell(ticket, now)
            if not tries_left or not self._recheck_limits(ticket, backend, now):
                return backend
            tries_left -= 1
            is_undone = True
            self.complete(ticket, now, Ending.NEITHER)
            self._number = ticket.number = self._number + 1
            backend = self._enqueue(ticket, model_queue, eligible_set, now)
        is_first = not queue.own_entry.count
        self._tell(ticket, now)
        if is_first or is_undone:
            # Others that have ended or taken back something before they were told have not rung.
            self._read(now)
        return None

    def best(self, ticket: Ticket, now: float, home: Backend | None = None) -> Backend | None:
        """Choose where a request that cannot be queued goes; see `Scheduler`."""
        self._read_if_old(ticket, now)
        return super().best(ticket, now, home)

    def start(self, ticket: Ticket, backend: Backend, now: float) -> None:
        """Begin a request without offering it; see `Scheduler`."""
        self._read_if_old(ticket, now)
        super().start(ticket, backend, now)
        self._tell(ticket, now)

    def hedge(self, ticket: Ticket, now: float) -> Backend | None:
        """Begin a second attempt; see `Scheduler`. None, too, if other workers queue requests."""
        model_queue = self._prepare(ticket, now)
        if self._queues[model_queue].others:
            return None
        backend = super().hedge(ticket, now)
        self._tell(ticket, now)
        if backend is not None and self._recheck_limits(ticket, backend, now):
            self.complete(ticket, now, Ending.NEITHER)
            return None
        return backend

    def divide(
        self, ticket: Ticket, now: float, limit: int, most: int, preferred: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Divide a batch; see `Scheduler`. Empty, too, if other workers queue requests."""
        model_queue = self._prepare(ticket, now)
        if self._queues[model_queue].others:
            return ()
        return super().divide(ticket, now, limit, most, preferred)

    def complete(self, ticket: Ticket, now: float, ending: Ending) -> None:
        """Count the end of an attempt; see `Scheduler`. If no request of this worker begins in its
        place, `tell` rings for the worker whose next request is the most urgent."""
        if not 0.0 <= now - self._read_at < _FRESH_S:
            self._read(now)
        model_backend: ModelBackend | None = ticket.model_backend
        is_counted = model_backend is not None
        backend = ticket.backend
        learnt = 0 if model_backend is None else model_backend.load.cost.count
        super().complete(ticket, now, ending)
        model_queue: ModelQueue | None = ticket.request_class.model_queue
        if model_queue is None or backend is None:
            return
        if model_backend is None or model_backend.shared is None:
            model_backend = model_queue.model_backends.get(backend)
            if model_backend is None:
                return
        shared = self._queues.get(model_queue)
        if shared is not None:
            ended = shared.ended
            eligible_set: EligibleSet | None = ticket.request_class.eligible_set
            is_other = ended and shared.ended_set is not eligible_set
            shared.ended_set = None if is_other else eligible_set
            if backend in ended:
                ended[backend] += 1
            else:
                ended[backend] = 1
            if not model_queue.waiting:  # otherwise `_step` decides
                self._ended[model_queue] = shared
        is_undone = ending is Ending.NEITHER
        self._tell_end(model_queue, model_backend, learnt, now, is_undone=is_undone)
        if self._waiting and is_counted:
            # `on_room` was called, so `next_due` comes in this iteration of the event loop.
            if self._untold_at == inf:
                self._untold_at = now
        # A request that was taken back may be queued here in a moment: then `_step` decides.
        elif not (is_undone or self._waiting) and self._board.has_queued_elsewhere():
            self.tell(now)  # a request of another worker may begin in its place
        else:
            self._tell_soon(now)

    def _review(
        self,
        ended: Ticket,
        model_queue: ModelQueue,
        model_backend: ModelBackend,
        now: float,
        ending: Ending,
    ) -> None:
        """Give up lost requests, and have others give up theirs; see `Scheduler`. They are told
        when they are told of the end."""
        answered_from = model_backend.unanswered.answered_from(ended, ending)
        if answered_from is not None:
            entry = self._load(model_queue, model_backend, now).own_entry
            entry.answered_from = answered_from
            self._board.write_sample(entry)
        super()._review(ended, model_queue, model_backend, now, ending)

    def _hand_over(self, now: float) -> None:
        """Ring for the workers with the most urgent requests where requests have ended in whose
        place none of this worker begins. The others must have been told of them."""
        ended, self._ended = self._ended, {}
        if not (self._waiting or self._board.has_queued_elsewhere()):
            for shared in ended.values():
                shared.ended.clear()
            return
        # Who queues a request from now on finds the room. What others have ended before they were
        # told may be room for requests of this worker.
        self._read(now)
        for model_queue, shared in ended.items():
            if not shared.ended or self._is_ready(model_queue):
                continue
            has_room = model_queue.has_room(shared.ended)
            shared.ended.clear()
            if not has_room:
                continue
            if shared.others:
                self._ring_first(shared, shared.ended_set, now)
            elif self._limits:
                # Requests of other models may begin in their place.
                for worker in self._board.queued_elsewhere():
                    self._wake(worker, now)

    def _is_ready(self, model_queue: ModelQueue) -> bool:
        """Whether a queued request of a model may begin: `_step` then decides on ended ones."""
        return not model_queue.waiting.keys().isdisjoint(self._dirty.keys())

    def _pass_on(self, now: float) -> None:
        """Ring for others where room is left of what this worker was rung for. It has no request
        for it, so nobody rings for this worker because of the same room."""
        self._is_rung = False
        if not self._board.has_queued_elsewhere():
            return
        for model_queue, shared in self._queues.items():
            if shared.others and not model_queue.waiting and model_queue.has_room():
                sets = model_queue.eligible_sets
                only = next(iter(sets.values())) if len(sets) == 1 else None
                self._ring_first(shared, only, now)

    def _ring_first(
        self, shared: _SharedQueue, eligible_set: EligibleSet | None, now: float
    ) -> None:
        """Ring for the worker with the most urgent request, and for all others that have requests
        if that one may not be able to use the room.

        Args:
            shared: of a model of which other workers have requests queued.
            eligible_set: whose requests can use the room. None: it is not known.
            now: the time.
        """
        if eligible_set is not None:
            worker = shared.first(eligible_set, now)
            self._wake(worker, now)
            if len(shared.others) == 1 or shared.sets[worker] == _set_key(eligible_set):
                return
        for worker in shared.others:
            self._wake(worker, now)

    def _wake(self, worker: int, now: float) -> None:
        """Ring for another worker, unless it has yet to hear the last ring: it reads what has
        changed since, too."""
        self._write_untold(now)
        reads = self._board.reads_of(worker)
        if self._rang.get(worker) != reads:
            self._rang[worker] = reads
            self.ring(worker)

    def drop(self, ticket: Ticket) -> None:
        """Take a ticket out of its queue; see `Scheduler`."""
        super().drop(ticket)
        # The last time that is known: what others have changed must not be counted in the past.
        self._tell(ticket, max(ticket.arrived_at, self._read_at, self._told_at))

    def next_due(self, now: float) -> Ticket | None:
        """Give the next ticket that begins now; see `Scheduler`."""
        if self._waiting and not 0.0 <= now - self._read_at < _FRESH_S:
            self._read(now)
        while (ticket := super().next_due(now)) is not None:
            model_queue: ModelQueue = ticket.request_class.model_queue
            shared = self._queues.get(model_queue)
            backend = ticket.backend
            assert backend is not None
            if shared is not None and shared.ended:
                ended = shared.ended
                if backend in ended:
                    ended[backend] -= 1
                    if not ended[backend]:
                        del ended[backend]
                if not ended:
                    if model_queue in self._ended:
                        del self._ended[model_queue]
                elif not self._is_ready(model_queue):
                    self._ended[model_queue] = shared
            self._untold_at = now  # what follows asks for no other call
            self._tell(ticket, now)
            self.tell(now)
            if not self._recheck_limits(ticket, backend, now):
                if self._is_rung and not (self._dirty or self._began):
                    self._pass_on(now)
                return ticket
            self.complete(ticket, now, Ending.NEITHER)
            eligible_set = model_queue.eligible_set(ticket, now)
            ticket.eligible_set = eligible_set
            eligible_set.ranking = None
            eligible_set.queue.put_back(ticket)
            model_queue.waiting[eligible_set] = None
            self._waiting += 1
            self._expire_at(ticket, model_queue, ticket.deadline)
            self._dirty[eligible_set] = model_queue
            self._tell(ticket, now)
            self._read(now)  # another worker may have taken back a request as well
        if self._ended or self._untold_at != inf:
            self.tell(now)
        if self._is_rung:
            self._pass_on(now)
        return None

    def next_refused(self, now: float) -> Ticket | None:
        """Give the next queued request that is not run; see `Scheduler`."""
        ticket = super().next_refused(now)
        if ticket is not None:
            self._tell(ticket, now)
        return ticket

    def _step(self, model_queue: ModelQueue, eligible_set: EligibleSet, now: float) -> None:
        """Dispatch the next request of an eligible set, unless another worker's is more urgent and
        it has not had the time to use the room.

        Where later requests overtake, the order matters less than the time in which nobody uses the
        room: the simulation has 3 to 5 % less at the 99th percentile without it.
        """
        shared = self._queues.get(model_queue)
        if shared is None or not eligible_set.queue.count:
            super()._step(model_queue, eligible_set, now)
            return
        if not shared.others:
            self._step_own(model_queue, eligible_set, shared, now)
            return
        worker = shared.first(eligible_set, now)
        first = shared.waits_of(worker)
        order = eligible_set.order(first, now)
        if not overtakes(order) and _goes_first(eligible_set, order, eligible_set.waits(now), now):
            left_s = self._left_s(shared, eligible_set, worker, first, now)
            if left_s > 0.0:
                if shared.ended_set is not eligible_set:
                    if shared.ended:
                        self._ended[model_queue] = shared
                elif shared.ended:
                    shared.ended.clear()
                    self._wake(worker, now)
                eligible_set.freed = 0
                eligible_set.wake_at = now + left_s
                self._dirty.pop(eligible_set, None)
                self._number += 1
                heappush(
                    self._wakes, (eligible_set.wake_at, self._number, eligible_set, model_queue)
                )
                return
            if not self._step_own(model_queue, eligible_set, shared, now):
                # There is no room: somebody else has taken what was left to that worker.
                shared.gave_way_to = None
            return
        self._step_own(model_queue, eligible_set, shared, now)

    def _left_s(
        self,
        shared: _SharedQueue,
        eligible_set: EligibleSet,
        worker: int,
        first: Waits,
        now: float,
    ) -> float:
        """Find for how many seconds room is left to another worker; none if it has had its time."""
        reads = self._board.reads_of(worker)
        left_s = shared.gave_way_at + _GIVE_WAY_S - now
        if shared.gave_way_to != first or left_s < _GIVE_WAY_S - _GIVE_WAY_AGAIN_S:
            shared.gave_way_to = first
            shared.gave_way_at = now
            shared.gave_way_reads = reads
            return _GIVE_WAY_S
        if (
            left_s <= 0.0
            and shared.gave_way_reads != reads
            and (eligible_set.has_tenants or eligible_set.max_lead_s == ANY_LEAD_S)
            and shared.sets[worker] == _set_key(eligible_set)
            and not any(each.is_idle for each in eligible_set.model_backends)
        ):
            # It has looked, and finds no room beyond what executes: workers learn by themselves how
            # many requests are to be ahead. If this one filled it up, requests of the one that has
            # learnt a smaller number would wait for ever. They do not where later ones overtake.
            shared.gave_way_to = None
            return _GIVE_WAY_AGAIN_S
        return left_s

    def _step_own(
        self,
        model_queue: ModelQueue,
        eligible_set: EligibleSet,
        shared: _SharedQueue,
        now: float,
    ) -> bool:
        """Dispatch the next request of an eligible set. What this worker has ended and cannot use
        is left to others, who may have queued requests since they were read.

        Returns:
            Whether the queue has become shorter.
        """
        queued = eligible_set.queue.count
        super()._step(model_queue, eligible_set, now)
        if eligible_set.queue.count < queued:
            return True  # `next_due` or `next_refused` goes on with what has ended
        if shared.ended:
            self._ended[model_queue] = shared
        return False

    # Other workers

    def tick(self, now: float) -> None:
        """Say that this worker runs, and count no worker that does not. To be called ten times a
        second."""
        self._board.tick(now)
        alone = dict.fromkeys(self._others_at, 0.0)
        # What was read amiss, or half, is read again.
        for entries in self._seen:
            for seen in entries:
                if seen.count:
                    self._on_change(seen, now)
                    shared = self._shared.get(seen.key)
                    if shared is not None:
                        alone_s = self._board.read_sample(seen.worker, seen.number)[3]
                        alone[shared] = max(alone.get(shared, 0.0), alone_s)
        self._follow_others(alone)
        for limited in self._limits.values():
            self._tell_limited(limited, 0)
        self.tell(now)
        self._read(now)

    def _follow_others(self, alone: dict[SharedLoad, float]) -> None:
        """Have what is sent ahead depend on the longest way to a backend, and not on the own one.
        The worker that sends furthest ahead would have room where the others have none: it would
        take all of it, for as long as requests are queued.

        Args:
            alone: the longest `ModelBackend.alone_s` of workers that have requests in flight.
        """
        for shared, alone_s in alone.items():
            model_backend: ModelBackend | None = shared.counted_at
            if model_backend is not None and model_backend.others_alone_s != alone_s:
                model_backend.others_alone_s = alone_s
                model_backend.adjust()
        self._others_at = [shared for shared, alone_s in alone.items() if alone_s]

    def rung(self, now: float) -> None:
        """Another worker has rung, since there is room: use it, or ring for one that can."""
        self._read(now)
        self._is_rung = True
        if not (self._dirty or self._began):
            self._pass_on(now)

    def _read(self, now: float) -> None:
        """Take over what other workers have changed.

        Requests that begin and end do so once in `_FRESH_S`: what they decide by is younger than
        any execution, and reading more often costs more than it is worth.
        """
        self._read_at = now
        for worker, number in self._board.changes():
            self._on_change(self._seen_entry(worker, number), now)

    def _seen_entry(self, worker: int, number: int) -> _SeenEntry:
        while worker >= len(self._seen):
            self._seen.append([])
        entries = self._seen[worker]
        while number >= len(entries):
            entries.append(_SeenEntry(worker, len(entries)))
        return entries[number]

    def _on_change(self, seen: _SeenEntry, now: float) -> None:
        values = self._board.read(seen.worker, seen.number)
        key = values[0]
        if seen.key != key:
            if seen.key:
                self._apply(seen, (seen.key, 0, 0, 0, seen.ends, seen.samples, 0.0, 0.0), now)
            seen.key = 0
            seen.count = seen.high = seen.rows = seen.ends = seen.samples = 0
            seen.work_s = 0.0
        self._apply(seen, values, now)
        _, seen.count, seen.high, seen.rows, seen.ends, seen.samples, seen.work_s, _ = values
        seen.key = key

    def _apply(self, seen: _SeenEntry, values: Values, now: float) -> None:
        """Count what a worker has changed of one entry."""
        key, count, high, rows, ends, samples, work_s, since = values
        shared = self._shared.get(key)
        if shared is not None:
            model_queue: ModelQueue = shared.model_queue
            model_backend = model_queue.model_backends.get(shared.backend)
            if model_backend is None:
                return
            if shared.counted_at is not model_backend:
                self._count_anew(shared, model_backend, now)
            # What is new of it, or was begun anew, has no ends that are to be counted now.
            ended = ends - seen.ends if seen.key and ends > seen.ends else 0
            self._count(
                shared,
                model_backend,
                count - seen.count,
                high - seen.high,
                rows - seen.rows,
                work_s - seen.work_s,
                since,
                ended,
                now,
            )
            if samples > seen.samples:
                self._learn(seen, model_backend, now)
            unanswered = model_backend.unanswered
            if ended and unanswered.tickets and unanswered.review_at <= now:
                answered_from = self._board.read_sample(seen.worker, seen.number)[4]
                self._give_up(model_queue, model_backend, answered_from, now)
                self._write_load(shared)
            return
        change = count - seen.count
        queue = self._queue_keys.get(key)
        if queue is not None:
            self._on_queue(seen.worker, queue, values, change, now)
            if samples > seen.samples:
                took_s, *_ = self._board.read_sample(seen.worker, seen.number)
                queue.stats.learn_tail(took_s, now)
            return
        limited = self._limited.get(key)
        if limited is not None:
            limited.count += change
            limited.penalty.uncounted += change
            if change < 0 and self._waiting:
                self._mark_ready(self._model_queues.values(), now)
                self.on_room()

    def _on_queue(
        self, worker: int, model_queue: ModelQueue, values: Values, change: int, now: float
    ) -> None:
        """Note what another worker has queued of a model."""
        queue = self._queues[model_queue]
        model_queue.others_waiting += change
        for eligible_set in model_queue.eligible_sets.values():
            eligible_set.others_waiting = model_queue.others_waiting
        if values[1]:
            queue.others[worker] = values[2], values[6], values[7]
            queue.sets[worker] = values[4]
            tenant = None if self._usage is None else self._usage.client_at(worker, values[3])
            if tenant is None:
                queue.tenants.pop(worker, None)
            else:
                queue.tenants[worker] = tenant
        elif queue.others.pop(worker, None) is not None:
            # It may have left room.
            self._mark_ready((model_queue,), now)
            self.on_room()

    def _count(
        self,
        shared: SharedLoad,
        model_backend: ModelBackend,
        change: int,
        high: int,
        rows: int,
        work_s: float,
        since: float,
        ends: int,
        now: float,
    ) -> None:
        """Add what a worker has changed to the load of a model backend; see
        `ModelBackend.count_others`."""
        model_queue: ModelQueue = shared.model_queue
        shared.count += change
        shared.rows += rows
        shared.work_s += work_s
        if high:
            shared.high += high
            model_backend.high += high
        model_backend.count_others(change, work_s, since, ends, rows, now)
        if (change and model_queue.index is not None) or model_queue.reserves:
            model_queue.count_others(model_backend, change, now)
        if (change < 0 or ends) and model_queue.waiting:
            self._mark_ready((model_queue,), now)
            self.on_room()

    def _learn(self, seen: _SeenEntry, model_backend: ModelBackend, now: float) -> None:
        """Learn from the last execution that another worker tells of, unless it is no news."""
        cost = model_backend.load.cost
        if cost.count <= _CONFIDENT_SAMPLES or now - cost.at > _NEWS_S:
            took_s, rows, size, *_ = self._board.read_sample(seen.worker, seen.number)
            model_backend.learn(took_s, int(rows), int(size), now)

    def _count_anew(self, shared: SharedLoad, model_backend: ModelBackend, now: float) -> None:
        """Count what others have in flight in a model backend that is new. One that took the place
        of another one has been handed over what was counted there."""
        shared.counted_at = model_backend
        model_backend.shared = shared
        if model_backend.load.in_flight != len(model_backend.unanswered.tickets):
            return
        shared.count = shared.high = shared.rows = 0
        shared.work_s = 0.0
        for entries in self._seen:
            for seen in entries:
                if seen.key != shared.own_entry.key:
                    continue
                self._count(
                    shared,
                    model_backend,
                    seen.count,
                    seen.high,
                    seen.rows,
                    seen.work_s,
                    0.0,
                    0,
                    now,
                )
                if seen.samples:
                    self._learn(seen, model_backend, now)

    # This worker

    def _new_model_queue(self, ticket: Ticket, now: float) -> ModelQueue:
        model_queue = super()._new_model_queue(ticket, now)
        if self._usage is not None:
            times: dict[int, TenantTimes] = {}
            model_queue.tenant_times = partial(self._tenant_times, model_queue, times)
        return model_queue

    def _forget(self, model_queue: ModelQueue, now: float) -> None:
        self.tell(now)  # its last changes, while it is known
        super()._forget(model_queue, now)
        shared = self._queues.pop(model_queue, None)
        if shared is not None:
            del self._queue_keys[shared.own_entry.key]
        for load in self._loads.pop(model_queue, {}).values():
            _remove(self._shared, load)

    def _tenant_times(
        self, model_queue: ModelQueue, times: dict[int, TenantTimes], level: int
    ) -> TenantTimes:
        """The times of tenants of a priority of a model."""
        found = times.get(level)
        if found is None:
            assert self._usage is not None
            found = times[level] = TenantTimes(
                self._usage, model_queue.model, model_queue.version, level
            )
        return found

    def _prepare(self, ticket: Ticket, now: float) -> ModelQueue:
        """Know all about a ticket's model that other workers say."""
        model_queue = self._model_queue(ticket, now)
        eligible_set = model_queue.eligible_set(ticket, now)
        if model_queue not in self._queues:
            key = key_of(b"queue", model_queue.model, model_queue.version)
            self._queues[model_queue] = _SharedQueue(key)
            self._queue_keys[key] = model_queue
            self._apply_again(key, now)
        eligible_set.others_waiting = model_queue.others_waiting
        known = self._loads.get(model_queue)
        if known is None or len(known) < len(model_queue.model_backends):
            for model_backend in model_queue.model_backends.values():
                self._know(model_queue, model_backend, now)
        self._read(now)
        return model_queue

    def _read_if_old(self, ticket: Ticket, now: float) -> None:
        """Know what other workers say of a ticket's model now, or said a moment ago."""
        eligible_set: EligibleSet | None = ticket.request_class.eligible_set
        if eligible_set is None or eligible_set.is_retired or ticket.tried:
            self._prepare(ticket, now)
        elif not 0.0 <= now - self._read_at < _FRESH_S:
            self._read(now)

    def _apply_again(self, key: int, now: float) -> None:
        """Count what was read of a key before it was known what it stands for."""
        for worker, entries in enumerate(self._seen):
            for number, seen in enumerate(entries):
                if seen.key == key:
                    entries[number] = _SeenEntry(worker, number)
                    self._on_change(entries[number], now)

    def _load(self, model_queue: ModelQueue, model_backend: ModelBackend, now: float) -> SharedLoad:
        """Find what others are told of a model backend, and have told."""
        shared = model_backend.shared
        if shared is None or shared.counted_at is not model_backend:
            return self._know(model_queue, model_backend, now)
        return shared

    def _know(self, model_queue: ModelQueue, model_backend: ModelBackend, now: float) -> SharedLoad:
        """Count what others have in flight at a model backend from now on."""
        loads = self._loads.setdefault(model_queue, {})
        backend = model_backend.backend
        shared = loads.get(backend)
        if shared is None:
            key = key_of(b"backend", *_names(backend), model_queue.model, model_queue.version)
            shared = loads[backend] = self._shared[key] = SharedLoad(key, model_queue, backend)
            self._limit(model_backend.penalty, now)
        if shared.counted_at is not model_backend:
            self._count_anew(shared, model_backend, now)
        return shared

    def _limit(self, penalty: BackendPenalty, now: float) -> None:
        """Count what others have in flight at a backend, if it has a limit of its own."""
        if not penalty.backend.max_in_flight:
            return
        limited = self._limits.get(penalty.backend)
        if limited is not None and limited.penalty is penalty:
            return
        limited = self._limits[penalty.backend] = _SharedBackend(penalty)
        key = limited.own_entry.key
        self._limited[key] = limited
        self._apply_again(key, now)
        limited.own_entry.count = limited.own_count
        self._board.write(limited.own_entry)  # others may have a count of another record

    def _share_no_more(self, limited: _SharedBackend) -> None:
        """Tell others no more what this worker has in flight at a backend, and do not count what
        they have."""
        del self._limits[limited.penalty.backend]
        limited.penalty.uncounted -= limited.count
        if _remove(self._limited, limited):
            limited.own_entry.count = 0
            self._board.write(limited.own_entry)

    def _recheck_limits(self, ticket: Ticket, backend: Backend, now: float) -> bool:
        """Hear what the other workers have begun meanwhile. Returns whether a request that begins
        now exceeds a limit that somebody gave. Both have told, so at least one of them sees it.

        Others may also have been heard of since the decision, so all that is in flight is compared.
        """
        model_backend: ModelBackend | None = ticket.model_backend
        if model_backend is None or not (backend.max_in_flight or model_backend.is_exact):
            return False
        # Where all others are overdue, one more may be tried beyond the limit.
        is_trial = model_backend.load.in_flight <= model_backend.unanswered.open_below
        self._read(now)
        count = model_backend.load.in_flight
        if count > model_backend.limit and model_backend.is_exact and not is_trial:
            return True
        limit = backend.max_in_flight
        return bool(limit) and backend.in_flight + self._penalties[backend].uncounted >= limit

    def _tell_limited(self, limited: _SharedBackend, beginning: int) -> None:
        """Tell the others what this worker has in flight at a backend, and begins now. Of several
        records of a backend, others are told of the newest."""
        count = limited.own_count + beginning
        entry = limited.own_entry
        if count != entry.count and self._limited.get(entry.key) is limited:
            entry.count = count
            self._board.write(entry)

    def tell(self, now: float) -> None:
        """Tell the others what has changed here, and ring for one that waits for what has ended.

        Others are told at once of what begins, and of the first request that is queued. Of what
        ends, and of the next queued request, they are told once in `_FRESH_S` or at the end of the
        iteration of the event loop: until then they leave room unused, and exceed nothing.
        """
        self._write_untold(now)
        # A queued request that is to begin may use the room: `next_due` asks again then.
        if self._ended and not self._began:
            self._hand_over(now)

    def tell_untold(self) -> None:
        """Tell the others, unless they have been told of all by now. The time is the last one that
        is known."""
        if self._untold_at != inf:
            self.tell(max(self._untold_at, self._read_at))
        elif self._ended:
            self.tell(max(self._told_at, self._read_at))

    def _write_untold(self, now: float) -> None:
        """Write what others are to be told of."""
        self._told_at = now
        self._untold_at = inf
        for load in self._untold_loads:
            self._write_load(load)
        self._untold_loads.clear()
        for model_queue, shared in self._untold_queues.items():
            self._write_queue(model_queue, shared, now)
        self._untold_queues.clear()

    def _tell_soon(self, now: float) -> None:
        """Have others told of what has changed: at once, if they were told last some time ago."""
        if now >= self._told_at + _FRESH_S or now < self._told_at:
            self.tell(now)
        elif self._untold_at == inf:
            self._untold_at = now
            self.on_untold()

    def _tell(self, ticket: Ticket, now: float) -> None:
        """Tell the others what has become of a ticket that has not ended."""
        model_queue: ModelQueue = ticket.request_class.model_queue
        if ticket.backend is not None:
            model_backend: ModelBackend | None = ticket.model_backend
            if model_backend is None or model_backend.shared is None:
                model_backend = model_queue.model_backends.get(ticket.backend)
            if model_backend is not None:
                self._tell_begin(model_queue, model_backend, now)
        shared = self._queues.get(model_queue)
        if shared is not None and (model_queue.waiting or shared.own_entry.count):
            self._tell_queue(model_queue, shared, now)

    def _tell_queue(self, model_queue: ModelQueue, shared: _SharedQueue, now: float) -> None:
        """Tell the others what is queued here of a model: at once, if that is the first request or
        none any more."""
        if bool(model_queue.waiting) != bool(shared.own_entry.count):
            self._write_queue(model_queue, shared, now)
            if not shared.ended:
                return
        else:
            self._untold_queues[model_queue] = shared
        if shared.ended and (self._began or not self._is_ready(model_queue)):
            self._ended[model_queue] = shared
        self._tell_soon(now)

    def _write_queue(self, model_queue: ModelQueue, shared: _SharedQueue, now: float) -> None:
        entry = shared.own_entry
        eligible_set = _first_set(model_queue, now)
        if eligible_set is None:
            if entry.count:
                entry.count = 0
                self._board.write(entry)
        else:
            waits, found = model_queue.waits, eligible_set.waits(now)
            key = _set_key(eligible_set) if len(model_queue.waiting) == 1 else 0
            if (
                entry.count != waits
                or entry.ends != key
                or found != (entry.high, entry.work_s, entry.since)
            ):
                entry.count = waits
                entry.ends = key
                entry.high, entry.work_s, entry.since = found
                entry.rows = eligible_set.slot(now)
                self._board.write(entry)
        if self._told_waiting != self._waiting:
            self._told_waiting = self._waiting
            self._board.write_queued(self._waiting)

    def _tell_begin(self, model_queue: ModelQueue, model_backend: ModelBackend, now: float) -> None:
        """Tell the others at once that a request has begun at a model backend."""
        shared = self._load(model_queue, model_backend, now)
        if model_backend.backend.max_in_flight:
            limited = self._limits.get(model_backend.backend)
            if limited is not None:
                self._tell_limited(limited, 1)
        self._untold_loads.pop(shared, None)
        self._write_load(shared)

    def _tell_end(
        self,
        model_queue: ModelQueue,
        model_backend: ModelBackend,
        learnt: int,
        now: float,
        *,
        is_undone: bool,
    ) -> None:
        """Tell the others that a request has ended at a model backend, and what it took: now, or
        by the next `tell`.

        Args:
            model_queue: of its model.
            model_backend: where it has ended.
            learnt: samples of the cost there before that.
            now: the time.
            is_undone: it was not executed. Others may have taken back a request because of it.
        """
        shared = self._load(model_queue, model_backend, now)
        entry = shared.own_entry
        entry.ends += 1
        cost = model_backend.load.cost
        if cost.count > learnt:
            entry.samples += 1
            entry.took_s, entry.sample_rows, entry.sample_size = cost.last_sample()
            entry.alone_s = model_backend.alone_s
            self._board.write_sample(entry)
        # With an index, many ends that are heard of together make the next choice dearer.
        is_urgent = is_undone or model_queue.index is not None
        if model_backend.backend.max_in_flight:
            is_urgent = True
            limited = self._limits.get(model_backend.backend)
            if limited is not None:
                self._tell_limited(limited, 0)
        if is_urgent:
            self._untold_loads.pop(shared, None)
            self._write_load(shared)
        else:
            self._untold_loads[shared] = None

    def _write_load(self, shared: SharedLoad) -> None:
        entry = shared.own_entry
        model_backend: ModelBackend = shared.counted_at
        load = model_backend.load
        entry.count = count = len(model_backend.unanswered.tickets)
        high = model_backend.high - shared.high
        entry.high = high if high > 0 else 0
        rows = model_backend.rows_in_flight - shared.rows
        entry.rows = rows if rows > 0 else 0
        work_s = load.work_s - shared.work_s
        entry.work_s = work_s if count and work_s > 0.0 else 0.0
        entry.since = load.busy_since
        self._board.write(entry)

    # Changes

    def follow(self, renew: Renew, now: float) -> list[Ticket]:
        """Take over a new snapshot; see `Scheduler`. What is not known any more is not shared."""
        self._write_untold(now)  # of what is not known any more, too
        gone = super().follow(renew, now)
        known = set(self._model_queues.values())
        for model_queue, loads in tuple(self._loads.items()):
            backends = model_queue.model_backends if model_queue in known else {}
            for backend in [each for each in loads if each not in backends]:
                _remove(self._shared, loads.pop(backend))
            if model_queue not in known:
                del self._loads[model_queue]
        for backend, limited in tuple(self._limits.items()):
            # Others are told of what is in flight at a backend that is gone until it has ended.
            is_over = backend not in self._penalties and not backend.in_flight
            if is_over or not backend.max_in_flight:
                self._share_no_more(limited)
        for penalty in self._penalties.values():
            self._limit(penalty, now)
        self._ended = {each: shared for each, shared in self._queues.items() if shared.ended}
        self.tell(now)
        return gone

    def follow_rest(self, now: float) -> list[Ticket]:
        """Go on with the last `follow`; see `Scheduler`. Others are told by the next `tell`."""
        gone = super().follow_rest(now)
        self._untold_queues = self._queues.copy()
        return gone

    def in_flight_by_model(self, backend: Backend) -> dict[bytes, int]:
        """Count the requests of this worker that are in flight at a backend, by model."""
        return {
            model: sum([len(each.unanswered.tickets) for each in those])
            for model, those in self._model_backends_at(backend).items()
        }

    def model_backends(self, models: Collection[bytes] | None = None) -> Iterator[ModelBackendView]:
        """Every model backend that is known of, with what this worker has in flight there."""
        for view in super().model_backends(models):
            model_queue = self._model_queues[view.model, view.version]
            own = len(model_queue.model_backends[view.backend].unanswered.tickets)
            yield replace(view, in_flight=own)


def _names(backend: Backend) -> tuple[bytes, bytes]:
    """By which all workers know a backend. Another one may have its name while it finishes what it
    has."""
    spec = backend.spec
    return spec.name.encode(), spec.server.encode("utf-8", "surrogateescape")


def _remove(known: dict[int, Any], shared: SharedLoad | _SharedBackend) -> bool:
    """Count no more what others have in flight at something that is gone. Returns whether its entry
    is its own: another one may have taken its place."""
    key = shared.own_entry.key
    if known.get(key) is not shared:
        return False
    del known[key]
    return True


def _set_key(eligible_set: EligibleSet) -> int:
    """The key by which all workers know an eligible set."""
    if not eligible_set.key:
        names = sorted([_names(each.backend) for each in eligible_set.model_backends])
        eligible_set.key = key_of(b"set", *[name for each in names for name in each])
    return eligible_set.key


def _first_set(model_queue: ModelQueue, now: float) -> EligibleSet | None:
    """The set with the most urgent request that is queued for a model. None: nothing is."""
    waiting = model_queue.waiting
    if len(waiting) < 2:
        return next(iter(waiting), None)
    return min(waiting, key=lambda each: each.waits(now))


def _goes_first(
    eligible_set: EligibleSet, order: tuple[float, float, float], own: Waits, now: float
) -> bool:
    """Whether the request of another worker is so much more urgent than the own one that room is
    left to it. Until that worker has heard of the room, nobody uses it.

    Args:
        eligible_set: of both.
        order: of the other worker's request; see `EligibleSet.order`.
        own: the queued requests of this worker.
        now: the time.
    """
    own_order = eligible_set.order(own, now)
    if eligible_set.has_tenants or order[0] // 2 != own_order[0] // 2:
        return order < own_order
    # Of the same level: the first one of each, also where later ones of this worker overtake.
    return order[1] < own[1] - _GIVE_WAY_S


def _ring_nobody(_index: int) -> None:
    """Do nothing: there is nobody who could be woken."""
