"""Which backend runs which sequence, over all protocols and connections.

A sequence is pinned by its START to the backend whose time is spoken for the least by those that
are open (`habits`), to the one with the fewest of its model for its weight, or to one that every
replica of the balancer can find by a hash; its other steps follow; its END, or a long silence,
frees it. A pin wins over who may
get new requests, so a backend that drains keeps what it runs. When a backend has died its pins
are lost: the next step of each is told so, and the next START is placed afresh.

Nothing here looks at all pins: expiry takes the oldest few at each step, and what a backend took
along when it died is found out pin by pin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

from lb.balancing.habits import STEP_RATE, Habit, StepCost, faded
from lb.balancing.pin_rows import NO_ROW, PinRows
from lb.balancing.rendezvous import by_bounded_rendezvous, by_rendezvous
from lb.balancing.shares import OpenModel, Share, Totals, by_work, usual_rate
from lb.domain.backend import Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import Placement
from lb.domain.sequence import SequenceKey, SequenceStep

IDLE_FACTOR: Final = 10.0
"""A pin outlives Triton's own memory of the sequence by far: a late step should get Triton's
answer from the backend that knows best."""
_EXPIRED_PER_STEP: Final = 2
"""Looked at per step; one step adds at most one pin."""
_EVICTION_TRIES: Final = 16
_MAX_MODELS: Final = 10_000
"""Names of models come from clients."""


class Affinity(Enum):
    """How the backend of a new sequence is chosen."""

    LEAST_WORK = "least_work"
    """Where the least of the time is spoken for."""
    LEAST_OPEN = "least_open"
    RENDEZVOUS = "rendezvous"
    """By a hash of the key over the eligible backends: replicas of the balancer agree on it
    without telling each other. What another replica started is looked for in the order of the
    hash, and pinned here as well where it is found."""


class OpenSequence(NamedTuple):
    """A sequence that runs, for another table."""

    key: SequenceKey
    backend: str
    """Name of the backend; empty: it is over."""
    lifetime_s: float = 0.0
    """How long it is remembered without a step."""


class Pin:
    """An open sequence with steps under way."""

    __slots__ = ("backend", "row", "starts", "steps", "way")

    def __init__(self, backend: Backend, row: int) -> None:
        self.backend = backend
        self.row = row
        self.steps = 0
        """Attempts under way."""
        self.starts = 0
        """STARTs since then: an END frees what its own START began."""
        self.way: object | None = None
        """What its last step went over, for whoever has to keep steps in order."""


class SequenceTable:
    """All open sequences. One per process; every method but `sweep` is O(backends) or better."""

    def __init__(
        self, *, limit: int, affinity: Affinity = Affinity.LEAST_OPEN, bound: float = 0.0
    ) -> None:
        """Remember at most `limit` sequences; beyond that the one idle for longest is dropped."""
        self.limit = limit
        self.affinity = affinity
        self.bound = bound
        """With `RENDEZVOUS`: how many times its share of the sequences of a model a backend may
        have; 0 is no bound. All three may change: for sequences that begin later."""
        self._rows = PinRows()
        self._pins: dict[int, Pin] = {}
        """By row: those with steps under way."""
        self._queues: dict[float, int] = {}
        """By lifetime: of rows that live equally long without a step."""
        self._models: dict[bytes, OpenModel] = {}
        self._habits: dict[bytes, Habit] = {}
        self._totals = Totals()
        self._models_seen = 0
        self._shares: dict[int, Share] = {}
        self._shares_seen = 0
        self._turn = 0
        self.told: Callable[[OpenSequence], None] | None = None
        """Told of every sequence that begins or is over, while another process takes over."""
        self.started = 0
        self.lost = 0
        """Sequences whose backend died, as far as another step of them came."""
        self.expired = 0
        """Ended by silence."""
        self.dropped = 0
        """Forgotten although they may run, because there were too many."""

    def __len__(self) -> int:
        return len(self._rows)

    # Steps

    def place(
        self,
        step: SequenceStep,
        placement: Placement,
        idle_s: float,
        now: float,
        tried: tuple[Backend, ...] = (),
        joined: Collection[Backend] = (),
        slots: int = 0,
    ) -> tuple[Backend | None, Pin | None]:
        """Choose the backend of a step, and count the step as under way if it is pinned.

        Args:
            step: what the request says.
            placement: who may get new requests for its model.
            idle_s: how long its model remembers an idle sequence.
            now: monotonic seconds.
            tried: backends at which an attempt at this request has failed.
            joined: backends that take it without one more request in flight.
            slots: sequences of its model that one backend runs at once; 0: that is not known.

        Returns:
            The backend, and the pin that `ended` wants to have back. No pin: it is not
            remembered. No backend: nobody started it here, and any will do for its own word about
            that; or, for a START, none has room.

        Raises:
            RequestRefused: the sequence is lost.
        """
        lifetime_s = idle_s * IDLE_FACTOR
        queue = self._queue(lifetime_s)
        self._expire(queue, lifetime_s, now, _EXPIRED_PER_STEP)
        row = self._running(step, placement, lifetime_s, now)
        if row == NO_ROW:
            if not step.is_start and self.affinity is not Affinity.RENDEZVOUS:
                return None, None
            candidates = self._candidates(step, placement, tried, joined)
            backend = self._choose(step, candidates, slots, now)
            if backend is None:
                return None, None
            row = self._open(step.key, queue, backend, now)
            if row == NO_ROW:
                return backend, None
        else:
            self._use(row, queue, now, is_step=True)
        pin = self._pins.get(row)
        if pin is None:
            pin = self._pins[row] = Pin(self._shares[self._rows.owner[row]].backend, row)
        if step.is_start:
            pin.starts += 1
            self.started += 1
        pin.steps += 1
        return pin.backend, pin

    def _running(
        self, step: SequenceStep, placement: Placement, lifetime_s: float, now: float
    ) -> int:
        """The row of a sequence that goes on where it is; NO_ROW where it is to be placed.

        Raises:
            RequestRefused: it is lost.
        """
        row = self._find(step.key, lifetime_s, now)
        if row != NO_ROW and (share := self._shares[self._rows.owner[row]]).is_lost:
            self.lost += 1
            self._close(row)
            if not step.is_start:
                raise RequestRefused(Reason.SEQUENCE_LOST, lost_text(step.key, share.backend))
            row = NO_ROW
        if row != NO_ROW and step.is_start and self._is_misplaced(row, placement):
            self._close(row)
            row = NO_ROW
        return row

    def ended(
        self,
        step: SequenceStep,
        pin: Pin,
        starts: int,
        now: float,
        *,
        surely_not_run: bool = False,
        began_at: float = 0.0,
    ) -> None:
        """An attempt at a step is over, however it ended.

        Args:
            step: as it was placed.
            pin: that it got.
            starts: `pin.starts` right after it was placed.
            now: monotonic seconds.
            surely_not_run: the backend certainly did nothing: no sequence began, or ended.
            began_at: when it was sent, if it was answered well; its time teaches.
        """
        pin.steps -= 1
        row = pin.row
        if row == NO_ROW:
            return  # it was freed meanwhile
        if began_at:
            self._shares[self._rows.owner[row]].cost.ended(began_at, now)
        is_over = step.is_start if surely_not_run else step.is_end
        if is_over and pin.starts == starts:
            self._close(row)
            return
        self._use(row, self._rows.queue[row], now, is_step=False)
        if not pin.steps:
            del self._pins[row]

    def unknown(self, pin: Pin) -> None:
        """The backend says that it does not know the sequence: it has been restarted, or has
        forgotten it."""
        if pin.row != NO_ROW and pin.steps == 1:  # others under way may have started it anew
            self._close(pin.row)

    def forget(self, key: SequenceKey, backend: Backend) -> None:
        """A sequence did not begin on its backend after all."""
        if self.backend_of(key) is backend:
            self._close(self._rows.find(self._models[key.model].row_key(key.id)))

    def backend_of(self, key: SequenceKey) -> Backend | None:
        """Where a sequence runs; None where nobody started it, or it is lost."""
        share = self._share_of(key)
        return None if share is None or share.is_lost else share.backend

    def is_lost(self, key: SequenceKey) -> bool:
        """Whether a sequence has lost its backend, and nobody was told yet."""
        share = self._share_of(key)
        return share is not None and share.is_lost

    def sweep(self, now: float, limit: int) -> None:
        """Forget up to `limit` expired sequences of each lifetime; due about every second."""
        for lifetime_s, queue in self._queues.items():
            self._expire(queue, lifetime_s, now, limit)

    # Time that is spoken for

    def cost(self, model: bytes, backend: Backend) -> StepCost | None:
        """What steps of a model cost at a backend, to be taught; None: none ran there."""
        habit = self._habits.get(model)
        return None if habit is None else habit.cost(backend)

    def totals(self, now: float) -> dict[Backend, float]:
        """The parts of their time that open sequences of all models take; 0 of those left out."""
        return self._totals.renew(self._shares.values(), now)

    def keep_only(self, backends: frozenset[Backend]) -> None:
        """Forget what was learnt of backends that have gone."""
        for habit in self._habits.values():
            habit.keep_only(backends)

    # Another table

    def export(self, begin: int, count: int) -> list[OpenSequence] | None:
        """A part of what runs, for another table; None when that was all.

        Args:
            begin: row to begin at.
            count: rows to look at.
        """
        if begin >= self._rows.size:
            return None
        lifetimes = {queue: lifetime for lifetime, queue in self._queues.items()}
        found = []
        for row in range(begin, min(begin + count, self._rows.size)):
            if self._rows.key(row):
                share = self._shares[self._rows.owner[row]]
                if not share.is_lost:
                    lifetime_s = lifetimes[self._rows.queue[row]]
                    found.append(OpenSequence(self._key(row), share.backend.name, lifetime_s))
        return found

    def adopt(self, sequence: OpenSequence, backend: Backend | None, now: float) -> None:
        """Know of a sequence what another table knows, unless a step of it is under way here.

        Args:
            sequence: as it was exported.
            backend: the one that it names; None where there is none, or it is over.
            now: monotonic seconds.
        """
        key = sequence.key
        model = self._models.get(key.model)
        row = NO_ROW if model is None else self._rows.find(model.row_key(key.id))
        if row != NO_ROW:
            if row in self._pins:
                return
            self._close(row)
        if backend is not None:
            self._open(key, self._queue(sequence.lifetime_s), backend, now)

    def _key(self, row: int) -> SequenceKey:
        model = self._shares[self._rows.owner[row]].model
        return SequenceKey(model.name, _id_of(self._rows.key(row)))

    def open_by_model(self, max_models: int) -> Iterator[tuple[str, str, int]]:
        """Name of the backend, model, and how many run there; of models beyond the first
        `max_models` under the name `other`."""
        found: Counter[tuple[str, str]] = Counter()
        for name, share in self._by_model(max_models):
            found[share.backend.name, name] += share.open
        for (backend, name), count in found.items():
            yield backend, name, count

    def time_by_model(self, max_models: int, now: float) -> Iterator[tuple[str, str, float]]:
        """The same with the part of the backend's time that they are expected to take."""
        found: dict[tuple[str, str], float] = {}
        for name, share in self._by_model(max_models):
            key = share.backend.name, name
            found[key] = found.get(key, 0.0) + share.part(now)
        for (backend, name), part in found.items():
            yield backend, name, part

    def _by_model(self, max_models: int) -> Iterator[tuple[str, Share]]:
        for number, model in enumerate(self._models.values()):
            name = (
                model.name.decode("utf-8", "backslashreplace") if number < max_models else "other"
            )
            for share in model.shares.values():
                if not share.is_lost:
                    yield name, share

    def counts(self) -> dict[str, int]:
        """Since the start: how many were started, and forgotten without their END."""
        return {
            "started": self.started,
            "lost": self.lost,
            "expired": self.expired,
            "dropped": self.dropped,
        }

    # Choice

    @staticmethod
    def _candidates(
        step: SequenceStep,
        placement: Placement,
        tried: tuple[Backend, ...],
        joined: Collection[Backend],
    ) -> list[Backend]:
        free = list(placement.eligible)
        if step.is_start:  # others have to go where they belong
            free = [backend for backend in free if backend.has_room or backend in joined]
        return [backend for backend in free if backend not in tried] or free

    def _choose(
        self, step: SequenceStep, candidates: list[Backend], slots: int, now: float
    ) -> Backend | None:
        if not candidates:
            return None
        model = self._models.get(step.key.model)
        shares = model.shares if model is not None else {}
        if self.affinity is Affinity.LEAST_WORK:
            if not self._totals.hold(now):
                self.totals(now)
            habit = self._habit(step.key.model)
            return by_work(habit, shares, self._totals, candidates, slots, now)

        def running(backend: Backend) -> int:
            share = shares.get(backend)
            return 0 if share is None or share.is_lost else share.open

        if self.affinity is Affinity.RENDEZVOUS:
            if step.is_start and self.bound:
                return by_bounded_rendezvous(step.key, candidates, running, self.bound)
            return by_rendezvous(step.key, candidates)

        def rank(backend: Backend) -> tuple[float, float, int]:
            per_weight = backend.inverse_weight
            return (
                (running(backend) + 1) * per_weight,
                (backend.in_flight + 1) * per_weight,
                backend.last_sequence,
            )

        return min(candidates, key=rank)

    def _is_misplaced(self, row: int, placement: Placement) -> bool:
        """Whether a new START of an open sequence belongs elsewhere: its backend gets nothing new,
        and has no step of it under way that could be followed by another one."""
        eligible = placement.eligible
        if row in self._pins or not eligible:
            return False
        return self._shares[self._rows.owner[row]].backend not in eligible

    # Pins

    def _use(self, row: int, queue: int, now: float, *, is_step: bool) -> None:
        """Something was heard of a sequence: a step of it begins, or is over."""
        rows = self._rows
        share = self._shares[rows.owner[row]]
        pause_s = max(0.0, now - rows.used[row])
        share.model.habit.note(pause_s, is_step=is_step)
        step = STEP_RATE if is_step else 0.0
        left = faded(1.0, pause_s)
        rows.seen[row] = rows.seen[row] * left + step
        rows.assumed[row] *= left
        share.add(step, 0.0, now)
        rows.touch(row, queue, now)

    def _habit(self, model: bytes) -> Habit:
        habits = self._habits
        habit = habits.get(model)
        if habit is None:
            if len(habits) >= 2 * _MAX_MODELS:
                self._habits = habits = {each.name: each.habit for each in self._models.values()}
            habit = habits[model] = Habit()
        return habit

    def _share_of(self, key: SequenceKey) -> Share | None:
        model = self._models.get(key.model)
        row = NO_ROW if model is None else self._rows.find(model.row_key(key.id))
        return None if row == NO_ROW else self._shares[self._rows.owner[row]]

    def _queue(self, lifetime_s: float) -> int:
        queue = self._queues.get(lifetime_s)
        if queue is None:
            queue = self._queues[lifetime_s] = self._rows.new_queue()
        return queue

    def _find(self, key: SequenceKey, lifetime_s: float, now: float) -> int:
        model = self._models.get(key.model)
        if model is None:
            return NO_ROW
        row = self._rows.find(model.row_key(key.id))
        if row == NO_ROW or row in self._pins or self._rows.used[row] + lifetime_s > now:
            return row
        self.expired += 1
        self._close(row)
        return NO_ROW

    def _open(self, key: SequenceKey, queue: int, backend: Backend, now: float) -> int:
        if len(self._rows) >= self.limit:
            self._make_room()
        model = self._models.get(key.model)
        if model is None:
            if len(self._models) >= _MAX_MODELS:
                self.dropped += 1
                return NO_ROW
            self._models_seen += 1
            habit = self._habit(key.model)
            model = self._models[key.model] = OpenModel(key.model, self._models_seen, habit)
        share = model.shares.get(backend)
        if share is None or share.is_lost:
            self._shares_seen += 1
            share = model.shares[backend] = Share(model, backend, self._shares_seen)
            self._shares[share.number] = share
        model.open += 1
        share.open += 1
        backend.open_sequences += 1
        self._turn += 1
        backend.last_sequence = self._turn
        if self.told is not None:
            lifetime_s = next(each for each, known in self._queues.items() if known == queue)
            self.told(OpenSequence(key, backend.name, lifetime_s))
        rows = self._rows
        row = rows.add(model.row_key(key.id), share.number, queue, now)
        rows.seen[row] = 0.0
        rows.assumed[row] = usual_rate(model.habit, model.shares.values(), now)
        share.add(0.0, rows.assumed[row], now)
        return row

    def _close(self, row: int, *, is_told: bool = True) -> None:
        pin = self._pins.pop(row, None)
        if pin is not None:
            pin.row = NO_ROW
        if is_told and self.told is not None:
            self.told(OpenSequence(self._key(row), ""))
        rows = self._rows
        share = self._shares[rows.owner[row]]
        share.take(rows.seen[row], rows.assumed[row], rows.used[row])
        rows.remove(row)
        share.open -= 1
        if not share.is_lost:
            share.backend.open_sequences -= 1
        model = share.model
        model.open -= 1
        if not share.open:
            del self._shares[share.number]
            if model.shares.get(share.backend) is share:
                del model.shares[share.backend]
        if not model.open:
            del self._models[model.name]

    def _expire(self, queue: int, lifetime_s: float, now: float, limit: int) -> None:
        rows = self._rows
        for _ in range(limit):
            row = rows.oldest(queue)
            if row == NO_ROW or rows.used[row] + lifetime_s > now:
                return
            if row in self._pins:
                self._use(row, queue, now, is_step=False)  # a long step is no silence
            else:
                self.expired += 1
                self._close(row, is_told=False)  # it may have had its steps elsewhere

    def _make_room(self) -> None:
        """Forget the sequence without a step under way that was idle for longest."""
        rows = self._rows
        for _ in range(_EVICTION_TRIES):
            heads = (
                row for queue in self._queues.values() if (row := rows.oldest(queue)) != NO_ROW
            )
            row = min(heads, key=rows.used.__getitem__)
            if row not in self._pins:
                self.dropped += 1
                self._close(row, is_told=False)
                return
            rows.touch(row, rows.queue[row], rows.used[row])


def _id_of(row_key: bytes) -> int | str:
    """The id in a key of a row: see `_Model.row_key`."""
    text = row_key.partition(b" ")[2]
    if text[:1] == b"i":
        return int(text[1:], 16)
    return text[1:].decode("utf-8", "surrogateescape")


def lost_text(key: SequenceKey, backend: Backend) -> str:
    """What to tell a client whose sequence is gone with its backend."""
    return f"{sequence_text(key)} is lost: its backend {backend.name} has gone; start it again"


def sequence_text(key: SequenceKey) -> str:
    """A sequence in words; texts in quotation marks, because 77 and "77" are two."""
    name = f'"{key.id}"' if isinstance(key.id, str) else key.id
    return f"sequence {name} of model {key.model.decode('utf-8', 'replace')}"
