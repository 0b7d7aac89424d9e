"""Which backend runs which sequence, over all protocols and connections.

A sequence is pinned by its START to the backend with the fewest open sequences and requests in
flight for its speed (`open_sequences`), or to one that every replica of the balancer can find by a
hash; its other steps follow; its END, or a long silence, frees it. A pin wins over who may get new
requests, so a backend that drains keeps what it runs. When a backend has died its pins
are lost: the next step of each is told so, and the next START is placed afresh.

Nothing here looks at all pins: expiry takes the oldest few at each step, and what a backend took
along when it died is found out pin by pin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

from lb.balancing.open_sequences import OpenModel, OpenSequences, least_loaded, open_on
from lb.balancing.pin_rows import NO_ROW, PinRows
from lb.balancing.rendezvous import by_bounded_rendezvous, by_rendezvous
from lb.balancing.step_latency import StepLatencies, StepLatency
from lb.domain.backend import Backend
from lb.domain.errors import RequestRefused
from lb.domain.names import readable
from lb.domain.outcome import Reason
from lb.domain.pool import Placement
from lb.domain.sequence import Question, SequenceKey, SequenceStep

IDLE_FACTOR: Final = 10.0
"""A pin is kept for this many times as long as Triton remembers a sequence, which bounds memory: a
late step should get Triton's answer from the backend that knows best."""
REFUSED_LIFETIME_S: Final = 5.0
"""A sequence of which no step was taken yet is kept for at most this long after a refusal. The
error may have come after the sequence began, so its next step still finds the backend."""
_EXPIRED_PER_STEP: Final = 2
"""Looked at per step; one step adds at most one pin."""
_EVICTION_TRIES: Final = 16
_MAX_MODELS: Final = 10_000
"""Names of models come from clients."""


class Affinity(Enum):
    """How the backend of a new sequence is chosen."""

    LEAST_LOADED = "least_loaded"
    """By open sequences and requests in flight, times how long a step takes there."""
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
    used_at: float = 0.0
    """When its last step here began or ended, in monotonic seconds; only where it was exported."""


class Pin:
    """An open sequence with steps under way."""

    __slots__ = ("backend", "connection", "is_unproven", "row", "starts", "steps")

    def __init__(self, backend: Backend, row: int, *, is_unproven: bool) -> None:
        self.backend = backend
        self.row = row
        self.is_unproven = is_unproven
        """The backend has taken no step of it yet, as far as is known."""
        self.steps = 0
        """Attempts under way."""
        self.starts = 0
        """STARTs since then: an END frees what its own START began."""
        self.connection: object | None = None
        """What its last step went over, for whoever has to keep steps in order."""


class SequenceTable:
    """All open sequences. One per process; every method but `sweep` is O(backends) or better."""

    def __init__(
        self, *, limit: int, affinity: Affinity = Affinity.LEAST_LOADED, bound: float = 0.0
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
        self._refused_queue = self._queue(REFUSED_LIFETIME_S)
        self._models: dict[bytes, OpenModel] = {}
        self._latencies: dict[bytes, StepLatencies] = {}
        self._models_seen = 0
        self._open_sequences: dict[int, OpenSequences] = {}
        self._open_sequences_seen = 0
        self._turn = 0
        self.on_change: Callable[[OpenSequence], None] | None = None
        """Told of every sequence that begins, goes on or is over, while other processes serve
        clients as well."""
        self.ask: Callable[[], Question] | None = None
        """Asks those what they have told that has not come yet."""
        self._told_at: dict[int, float] = {}
        """By row: when others were last told that it goes on."""
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
            remembered. No backend: nobody started it, and any will do for its own word about
            that; or, for a START, none has room.

        Raises:
            RequestRefused: the sequence is lost.
        """
        lifetime_s = idle_s * IDLE_FACTOR
        queue = self._queue(lifetime_s)
        self._expire(queue, lifetime_s, now, _EXPIRED_PER_STEP)
        row = self._running(step, placement, lifetime_s, now)
        is_unproven = True
        if row == NO_ROW:
            if not step.is_start and self.affinity is not Affinity.RENDEZVOUS:
                return None, None
            candidates = self._candidates(step, placement, tried, joined)
            backend = self._choose(step, candidates, slots)
            if backend is None:
                return None, None
            row = self._open(step.key, queue, backend, now)
            if row == NO_ROW:
                return backend, None
        else:
            is_unproven = self._rows.queue[row] == self._refused_queue
            self._rows.touch(row, queue, now)
        pin = self._pins.get(row)
        if pin is None:
            backend = self._open_sequences[self._rows.owner[row]].backend
            pin = self._pins[row] = Pin(backend, row, is_unproven=is_unproven)
        if step.is_start:
            pin.starts += 1
            self.started += 1
        pin.steps += 1
        return pin.backend, pin

    def question(self, step: SequenceStep, asked: Question | None) -> Question | None:
        """What a step waits for before it is placed: another process may have told of its sequence
        what has not come yet.

        Args:
            step: in question.
            asked: what it has waited for already.

        Returns:
            None: it waits for nothing.
        """
        if step.is_start or self.ask is None or self._row_of(step.key) != NO_ROW:
            return None
        question = asked or self.ask()
        return None if question.is_over else question

    def _running(
        self, step: SequenceStep, placement: Placement, lifetime_s: float, now: float
    ) -> int:
        """The row of a sequence that goes on where it is; NO_ROW where it is to be placed.

        Raises:
            RequestRefused: it is lost.
        """
        row = self._find(step.key, lifetime_s, now)
        if (
            row != NO_ROW
            and (open_sequences := self._open_sequences[self._rows.owner[row]]).is_lost
        ):
            self.lost += 1
            self._close(row)
            if not step.is_start:
                raise RequestRefused(
                    Reason.SEQUENCE_LOST, lost_text(step.key, open_sequences.backend)
                )
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
        is_refused: bool = False,
        began_at: float = 0.0,
    ) -> None:
        """An attempt at a step is over, however it ended.

        Args:
            step: as it was placed.
            pin: that it got.
            starts: `pin.starts` right after it was placed.
            now: monotonic seconds.
            surely_not_run: the backend certainly did nothing: no sequence began, or ended.
            is_refused: the backend answered that the request is wrong.
            began_at: when it was sent, if it was answered well; its time teaches.
        """
        pin.steps -= 1
        row = pin.row
        if row == NO_ROW:
            return  # it was freed meanwhile
        if began_at:
            self._open_sequences[self._rows.owner[row]].latency.ended(began_at, now)
            pin.is_unproven = False
        is_over = step.is_start if surely_not_run else step.is_end
        if is_over and pin.starts == starts:
            self._close(row)
            return
        self._rows.touch(row, self._rows.queue[row], now)
        if self.on_change is not None:
            self._tell_again(row, now)
        if not pin.steps:
            del self._pins[row]
            if is_refused and pin.is_unproven:
                self._shorten(row, now)

    def _tell_again(self, row: int, now: float) -> None:
        """Tell others that a sequence goes on, well before they forget it."""
        lifetime_s = self._lifetime(self._rows.queue[row])
        if now - self._told_at.get(row, 0.0) > lifetime_s / 4 and self.on_change is not None:
            self._told_at[row] = now
            backend = self._open_sequences[self._rows.owner[row]].backend
            self.on_change(OpenSequence(self._key(row), backend.name, lifetime_s))

    def refused(self, key: SequenceKey, backend: Backend, now: float) -> None:
        """A backend has refused a step whose pin was unproven, and which had ended in this table
        when it was sent."""
        row = self._row_of(key)
        if row == NO_ROW or row in self._pins:
            return
        found = self._open_sequences[self._rows.owner[row]]
        if found.backend is backend and not found.is_lost:
            self._shorten(row, now)

    def _shorten(self, row: int, now: float) -> None:
        """Keep a row for `REFUSED_LIFETIME_S` at most, unless another step comes."""
        if self._lifetime(self._rows.queue[row]) > REFUSED_LIFETIME_S:
            self._rows.touch(row, self._refused_queue, now)

    def unknown(self, pin: Pin) -> None:
        """The backend says that it does not know the sequence: it has been restarted, or has
        forgotten it."""
        if pin.row != NO_ROW and pin.steps == 1:  # others under way may have started it anew
            self._close(pin.row)

    def forget(self, key: SequenceKey, backend: Backend) -> None:
        """A sequence did not begin on its backend after all."""
        if self.backend_of(key) is backend:
            self._close(self._row_of(key))

    def backend_of(self, key: SequenceKey) -> Backend | None:
        """Where a sequence runs; None where nobody started it, or it is lost."""
        open_sequences = self._open_sequences_of(key)
        return None if open_sequences is None or open_sequences.is_lost else open_sequences.backend

    def used_at(self, key: SequenceKey) -> float:
        """When the last step of a sequence began or ended here, or another table had one, in
        monotonic seconds; 0.0 where nobody started it."""
        row = self._row_of(key)
        return 0.0 if row == NO_ROW else self._rows.used[row]

    def is_lost(self, key: SequenceKey) -> bool:
        """Whether a sequence has lost its backend, and nobody was told yet."""
        open_sequences = self._open_sequences_of(key)
        return open_sequences is not None and open_sequences.is_lost

    def sweep(self, now: float, limit: int) -> None:
        """Forget up to `limit` expired sequences of each lifetime, and up to `limit` of those that
        are too many since `self.limit` was lowered; due about every second."""
        for lifetime_s, queue in self._queues.items():
            self._expire(queue, lifetime_s, now, limit)
        for _ in range(min(limit, len(self._rows) - self.limit)):
            if not self._make_room():
                break

    # How long steps take

    def latency(self, model: bytes, backend: Backend) -> StepLatency | None:
        """How long steps of a model take at a backend, to learn from more; None: none ran."""
        latencies = self._latencies.get(model)
        return None if latencies is None else latencies.of(backend)

    def keep_only(self, backends: frozenset[Backend]) -> None:
        """Forget what was learnt of backends that have gone."""
        for latencies in self._latencies.values():
            latencies.keep_only(backends)

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
                open_sequences = self._open_sequences[self._rows.owner[row]]
                if not open_sequences.is_lost:
                    lifetime_s = lifetimes[self._rows.queue[row]]
                    name, used_at = open_sequences.backend.name, self._rows.used[row]
                    found.append(OpenSequence(self._key(row), name, lifetime_s, used_at))
        return found

    def adopt(self, sequence: OpenSequence, backend: Backend | None, now: float) -> None:
        """Know of a sequence what another table knows, unless a step of it is under way here.

        Args:
            sequence: as it was exported.
            backend: the one that it names; None where there is none, or it is over.
            now: when it was used, in monotonic seconds.
        """
        key = sequence.key
        row = self._row_of(key)
        if row != NO_ROW:
            if row in self._pins:
                return
            self._close(row)
        if backend is not None:
            self._open(key, self._queue(sequence.lifetime_s), backend, now)

    def _key(self, row: int) -> SequenceKey:
        model = self._open_sequences[self._rows.owner[row]].model
        return SequenceKey(model.name, _id_of(self._rows.key(row)))

    def open_by_model(self, max_models: int) -> Iterator[tuple[str, str, int]]:
        """Name of the backend, model, and how many run there; of models beyond the first
        `max_models` under the name `other`."""
        found: Counter[tuple[str, str]] = Counter()
        for number, model in enumerate(self._models.values()):
            name = readable(model.name) if number < max_models else "other"
            for open_sequences in model.by_backend.values():
                if not open_sequences.is_lost:
                    found[open_sequences.backend.name, name] += open_sequences.open
        for (backend, name), count in found.items():
            yield backend, name, count

    def open_on(self, model: bytes, backend: Backend) -> int:
        """How many sequences of a model run on a backend."""
        found = self._models.get(model)
        return 0 if found is None else open_on(found.by_backend, backend)

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

    def _choose(self, step: SequenceStep, candidates: list[Backend], slots: int) -> Backend | None:
        if not candidates:
            return None
        model = self._models.get(step.key.model)
        found = model.by_backend if model is not None else {}
        if self.affinity is Affinity.LEAST_LOADED:
            return least_loaded(self._latencies_of(step.key.model), found, candidates, slots)
        if step.is_start and self.bound:
            return by_bounded_rendezvous(
                step.key, candidates, lambda backend: open_on(found, backend), self.bound
            )
        return by_rendezvous(step.key, candidates)

    def _is_misplaced(self, row: int, placement: Placement) -> bool:
        """Whether a new START of an open sequence belongs elsewhere: its backend gets nothing new,
        and has no step of it under way that could be followed by another one."""
        eligible = placement.eligible
        if row in self._pins or not eligible:
            return False
        return self._open_sequences[self._rows.owner[row]].backend not in eligible

    # Pins

    def _latencies_of(self, model: bytes) -> StepLatencies:
        known = self._latencies
        latencies = known.get(model)
        if latencies is None:
            if len(known) >= 2 * _MAX_MODELS:
                known = {each.name: each.latencies for each in self._models.values()}
                self._latencies = known
            latencies = known[model] = StepLatencies()
        return latencies

    def _row_of(self, key: SequenceKey) -> int:
        """The row of a sequence; NO_ROW where nobody started it."""
        model = self._models.get(key.model)
        return NO_ROW if model is None else self._rows.find(model.row_key(key.id))

    def _open_sequences_of(self, key: SequenceKey) -> OpenSequences | None:
        row = self._row_of(key)
        return None if row == NO_ROW else self._open_sequences[self._rows.owner[row]]

    def _queue(self, lifetime_s: float) -> int:
        queue = self._queues.get(lifetime_s)
        if queue is None:
            queue = self._queues[lifetime_s] = self._rows.new_queue()
        return queue

    def _lifetime(self, queue: int) -> float:
        """Seconds that rows of a queue live without a step."""
        return next(each for each, known in self._queues.items() if known == queue)

    def _find(self, key: SequenceKey, lifetime_s: float, now: float) -> int:
        row = self._row_of(key)
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
            latencies = self._latencies_of(key.model)
            model = self._models[key.model] = OpenModel(key.model, self._models_seen, latencies)
        found = model.by_backend.get(backend)
        if found is None or found.is_lost:
            self._open_sequences_seen += 1
            found = OpenSequences(model, backend, self._open_sequences_seen)
            model.by_backend[backend] = self._open_sequences[found.number] = found
        model.open += 1
        found.open += 1
        backend.open_sequences += 1
        self._turn += 1
        backend.last_sequence = self._turn
        row = self._rows.add(model.row_key(key.id), found.number, queue, now)
        if self.on_change is not None:
            self._told_at[row] = now
            self.on_change(OpenSequence(key, backend.name, self._lifetime(queue)))
        return row

    def _close(self, row: int, *, is_told: bool = True) -> None:
        pin = self._pins.pop(row, None)
        if pin is not None:
            pin.row = NO_ROW
        if is_told and self.on_change is not None:
            self.on_change(OpenSequence(self._key(row), ""))
        self._told_at.pop(row, None)
        rows = self._rows
        found = self._open_sequences[rows.owner[row]]
        rows.remove(row)
        found.open -= 1
        if not found.is_lost:
            found.backend.open_sequences -= 1
        model = found.model
        model.open -= 1
        if not found.open:
            del self._open_sequences[found.number]
            if model.by_backend.get(found.backend) is found:
                del model.by_backend[found.backend]
        if not model.open:
            del self._models[model.name]

    def _expire(self, queue: int, lifetime_s: float, now: float, limit: int) -> None:
        rows = self._rows
        for _ in range(limit):
            row = rows.oldest(queue)
            if row == NO_ROW or rows.used[row] + lifetime_s > now:
                return
            if row in self._pins:
                rows.touch(row, queue, now)  # a long step is no silence
            else:
                self.expired += 1
                self._close(row, is_told=False)  # it may have had its steps elsewhere

    def _make_room(self) -> bool:
        """Forget the sequence without a step under way that was idle for longest, if one is."""
        rows = self._rows
        for _ in range(_EVICTION_TRIES):
            heads = (
                row for queue in self._queues.values() if (row := rows.oldest(queue)) != NO_ROW
            )
            row = min(heads, key=rows.used.__getitem__)
            if row not in self._pins:
                self.dropped += 1
                self._close(row, is_told=False)
                return True
            rows.touch(row, rows.queue[row], rows.used[row])
        return False


def _id_of(row_key: bytes) -> int | str:
    """The id in a key of a row: see `OpenModel.row_key`."""
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
