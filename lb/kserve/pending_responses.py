"""What a backend owes on a stream of inferences: which of its answers are due, and in which order.

A model that is not decoupled gives exactly one answer to each request, in the order of the
requests. How many a decoupled one gives to a request nobody can tell from outside (Triton's
documentation of decoupled models). Its requests are remembered until an answer says that it is
the last one, which not all of them have. Of its sequences only the last request is remembered.

All of this is in the memory budget: how much there is to remember is for the client to say, who may
let answers wait as long as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.stream_answers import AnswerNames, LastAnswers, answer_names, completed_by
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.flow import Payload
from lb.wire.memory_budget import MemoryBudget, Payer

FREE_MODELS: Final = 256
"""Names that are remembered; they come from clients."""
_NAME_BYTES: Final = 1024
"""Of each; no server has models with longer ones."""
UNFINISHED_REQUESTS: Final = 1024
"""Requests of decoupled models that are remembered until they are complete. A client that has had
more on a stream, none of which was seen to end, learns nothing from an error for each of them."""
OPEN_SEQUENCES: Final = 4096
ENDED_S: Final = 30.0
"""How long after its END a sequence may still be owed an answer."""
_ENTRY_BYTES: Final = 416
"""That the objects of a remembered request take, without its texts."""
_UNFINISHED_BYTES: Final = 256
"""That a remembered request takes which is not complete, without its texts."""
_NAME_ENTRY_BYTES: Final = 100
"""The same of a model's name."""
_CHARGED_AT_ONCE: Final = 4096
"""What is less is out of the memory budget: as much as the objects of the stream take."""
ACCOUNT_BYTES: Final = 400
"""That accounts of a request take, where they are kept."""
_SLOT_BYTES: Final = 16
"""Of a request that shares its entry with others: its places here and in the order of the
stream."""
KEPT_REQUEST_BYTES: Final = 64 * 1024
"""Longest request that is kept to be sent again."""
KEPT_STEP: Final = 16 * 1024
"""Bytes in which the memory budget is told of kept requests, one step ahead: a stream of which one
is kept at a time does not tell it of each."""
_MAX_KEPT: Final = 1024
"""Requests of one stream that are kept at most; clients with more in flight do not wait for single
answers."""
_FEW: Final = 4
"""Requests that the memory budget is not told of one by one: less than `_CHARGED_AT_ONCE`."""


class StreamMessage(NamedTuple):
    """What of one request on a stream decides where it goes and what comes back."""

    model: bytes = b""
    version: bytes = b""
    id: bytes = b""
    step: SequenceStep | None = None
    regions: tuple[bytes, ...] = ()
    has_one_answer: bool = False
    """Its model is known not to be decoupled, or that no backend has it ready."""
    rows: int = 0
    """Its batch dimension, where its model is scheduled and that counts; else 0."""
    size: int = 0
    """Bytes of it, without its prefix; 0 as above."""
    is_unserved: bool = False
    """No backend has its model ready, so its one answer is an error, unless that changes first."""


class Due(NamedTuple):
    """A request that has exactly one answer, which is still to come."""

    model: bytes = b""
    id: bytes = b""
    step: SequenceStep | None = None
    size: int = 0
    """Bytes in the memory budget for this entry alone; none for one that many requests share."""
    is_unserved: bool = False
    """As in `StreamMessage`."""


class PendingSequence(NamedTuple):
    """The last request of a sequence whose answers are not counted."""

    id: bytes
    ended_at: float
    """When it was sent, if it was the last step; otherwise 0."""
    began_here: bool
    """So did the first step."""

    def is_over(self, now: float) -> bool:
        """Whether it ended so long ago that no answer is still to come."""
        return 0 < self.ended_at < now - ENDED_S


class Debtor(Protocol):
    """Whoever has the stream."""

    def evict(self) -> None:
        """End it, and close its debts: the memory budget wants their bytes back."""
        ...

    @property
    def charged_to(self) -> Payer:
        """On whose behalf they are held."""
        ...


class PendingResponses:
    """What one backend owes on one stream. A holder of the memory budget, until it is closed."""

    __slots__ = (
        "_alike", "_incoming", "_kept_charged", "_kept_limit", "_last_answers", "_memory_budget",
        "_owner", "_reserved", "_size", "_unfinished_count", "completed", "counted",
        "drops_slowly", "free_models", "held", "is_unknown", "kept", "kept_at", "kept_size",
        "sequences", "unfinished",
    )  # fmt: skip

    def __init__(self, owner: Debtor, memory_budget: MemoryBudget, kept_limit: int) -> None:
        """
        Args:
            owner: has the stream.
            memory_budget: of the process.
            kept_limit: bytes of requests that are kept to be sent again, at most.
        """
        self._kept_limit = kept_limit
        self._owner: Debtor | None = owner
        """None once they are closed."""
        self._memory_budget = memory_budget
        self.held = 0
        """For the memory budget, which writes it."""
        self._size = 0
        """Bytes that all of it takes."""
        self._reserved = 0
        """Bytes of these for requests that share an entry, or are alike."""
        self._alike = 0
        """Requests that the memory budget was told of by `expect_alike`."""
        self.counted: deque[Due] = deque()
        """Requests that have exactly one answer, still to come, in order."""
        self.free_models: set[bytes] = set()
        """Models of the other requests so far."""
        self.unfinished: dict[AnswerNames, int] = {}
        """Requests of those models that belong to no sequence, and may have answers to come: how
        many there are of each name."""
        self._unfinished_count = 0
        """All of these."""
        self._last_answers: LastAnswers | None = None
        """Finds out which of them are complete; None before the first."""
        self.is_unknown = False
        """There were more of them than are remembered, or more answers than were due: nobody can
        say what is still to come."""
        self.sequences: dict[SequenceKey, PendingSequence] = {}
        """Of those models; the one without a request for longest is first."""
        self.completed = 0
        """Counted requests that have their answers."""
        self.kept: deque[Payload] = deque()
        """The last of the counted requests, prefixes included, as far as they may be sent again.
        Where one may not, nothing of those before it is kept: they are answered first."""
        self._incoming: bytearray | None = None
        """What has come of the last counted request, if that is to be kept and is not whole."""
        self.kept_size = 0
        """Bytes of both."""
        self.drops_slowly = False
        """An answer takes more than dropping the first request that is kept: `drop_answered`.
        Perhaps others before it have no answers, or the memory budget is to get bytes back."""
        self._kept_charged = 0
        """Bytes of these that the memory budget was told of."""
        self.kept_at = min(_CHARGED_AT_ONCE, kept_limit)
        """With more bytes kept, `charge_kept` is to be called."""

    @property
    def has_uncounted(self) -> bool:
        """Whether answers may be to come that are not counted."""
        return self.is_unknown or bool(self.unfinished or self.sequences)

    @property
    def is_mixed(self) -> bool:
        """Whether some answers are counted and others may come between them."""
        return bool(self.counted and self.free_models)

    # In the memory budget

    def evict(self) -> None:
        """The memory budget wants these bytes back: the stream ends."""
        if self._owner is not None:
            self._owner.evict()

    @property
    def charged_to(self) -> Payer | None:
        """See `lb.wire.memory_budget.Holder`."""
        return None if self._owner is None else self._owner.charged_to

    def close(self) -> None:
        """The stream is over."""
        self._owner = None
        self.counted.clear()
        self.drop_kept()
        self.free_models.clear()
        self.unfinished.clear()
        self.sequences.clear()
        self._size = 0
        if self.held:
            self._memory_budget.release(self, self.held)

    def _account(self, change: int) -> bool:
        """So many more bytes are taken. False when the stream had to give way instead."""
        size = self._size + change
        owed = size - size % _CHARGED_AT_ONCE - self.held
        if owed > 0:
            if not self._memory_budget.take(self, owed):
                return False
            if self._owner is None:
                # The largest holder was another part of the same stream.
                self._memory_budget.release(self, owed)
                return False
        elif owed:
            self._memory_budget.release(self, -owed)
        self._size = size
        return True

    def reserve(self, count: int, each: int = 0) -> bool:
        """Account for so many requests that share one entry, appended to `counted` elsewhere.

        Args:
            count: of requests.
            each: bytes that each of them takes beside.

        Returns:
            False when the memory budget made the stream give way instead.
        """
        size = count * (_SLOT_BYTES + each)
        if not self._account(size - self._reserved):
            return False
        self._reserved = size
        return True

    # Requests

    def note(self, message: StreamMessage, now: float) -> bool:
        """A request goes to the backend. False when the memory budget made the stream give way
        instead."""
        if message.has_one_answer:
            return self.expect(message)
        model = message.model[:_NAME_BYTES]
        models = self.free_models
        if len(models) < FREE_MODELS and model not in models:
            if not self._account(_NAME_ENTRY_BYTES + len(model)):
                return False
            models.add(model)
        if message.step is None:
            return self.expect_any(AnswerNames(model, message.id))
        return self._note_step(message, message.step, now)

    def _note_step(self, message: StreamMessage, step: SequenceStep, now: float) -> bool:
        sequences = self.sequences
        change = _size(message.id, step.key)
        before = sequences.pop(step.key, None)
        if before is not None:
            change -= _size(before.id, step.key)
        while sequences:
            key = next(iter(sequences))
            if len(sequences) < OPEN_SEQUENCES and not sequences[key].is_over(now):
                break
            change -= _size(sequences.pop(key).id, key)
        if not self._account(change):
            return False
        sequences[step.key] = PendingSequence(
            message.id,
            now if step.is_end else 0.0,
            step.is_start or (before is not None and before.began_here),
        )
        return True

    def expect(self, message: StreamMessage) -> bool:
        """A request has one answer. False when the memory budget made the stream give way
        instead."""
        step = message.step
        size = _size(message.id, None if step is None else step.key) + len(message.model)
        if message.rows:
            size += ACCOUNT_BYTES
        if not self._account(size):
            return False
        self.counted.append(Due(message.model, message.id, step, size, message.is_unserved))
        return True

    def expect_alike(self, due: Due, payload: bytes, size: int) -> bool:
        """A request has one answer, which takes as much as those of the others like it: `due.size`
        is 0. False when the memory budget made the stream give way instead.

        Args:
            due: what is known of the answer.
            payload: the request, which is kept.
            size: bytes of that.
        """
        # HOT PATH (benchmarks/bench_stream_relay.py). `expect` and `keep` are the reference.
        counted = self.counted
        counted.append(due)
        self.kept.append(payload)
        self.kept_size += size
        count = len(counted)
        if -_FEW < count - self._alike < _FEW:
            return True
        self._alike = count
        if self.kept_size > self.kept_at:
            self.charge_kept()
        return self.reserve(count, ACCOUNT_BYTES + _ENTRY_BYTES)

    # Requests of decoupled models

    def expect_any(self, names: AnswerNames) -> bool:
        """A request that belongs to no sequence has any number of answers. False when the memory
        budget made the stream give way instead."""
        if self._unfinished_count == UNFINISHED_REQUESTS:
            self.is_unknown = True
            return True
        count = self.unfinished.get(names, 0)
        if not (count or self._account(_unfinished_size(names))):
            return False
        self.unfinished[names] = count + 1
        self._unfinished_count += 1
        return True

    @property
    def follows_answers(self) -> bool:
        """Whether `arrived` is told of all bytes of answers."""
        return self._last_answers is not None

    def follow_answers(self, cutter: MessageCutter) -> None:
        """From now on `arrived` is told of all bytes of answers, the first one as the cutter
        says."""
        self._last_answers = LastAnswers(cutter)

    def arrived(self, payload: Payload) -> None:
        """Some bytes of answers came: find out which requests they complete."""
        if self._last_answers is not None:
            for names in self._last_answers.feed(payload):
                self._complete(names)

    def arrived_whole(self, payload: bytes) -> None:
        """As `arrived`, for a whole result."""
        names = completed_by(payload)
        if names is not None:
            self._complete(names)

    def _complete(self, names: AnswerNames) -> None:
        """A request has its last answer. Errors may name the id alone."""
        unfinished = self.unfinished
        if not names.model:
            names = next((each for each in unfinished if each.id == names.id), names)
        count = unfinished.pop(names, 0)
        if not count:
            return
        self._unfinished_count -= 1
        if count > 1:
            unfinished[names] = count - 1
        else:
            self._account(-_unfinished_size(names))

    def begun(self) -> set[SequenceKey]:
        """The sequences whose first step is owed an answer, as far as is known."""
        steps = (due.step for due in self.counted)
        keys = {step.key for step in steps if step is not None and step.is_start}
        return keys | {key for key, debt in self.sequences.items() if debt.began_here}

    def answered(self, count: int) -> None:
        """So many of the counted requests have their answers; where all are counted, some of these
        may be more than were due."""
        counted = self.counted
        if count > len(counted):
            count = len(counted)
            self.is_unknown |= not self.free_models
        size = 0
        for _ in range(count):
            size += counted.popleft().size
        self.completed += count
        self._account(-size)
        self.drop_answered(len(self.counted))

    def first_answered(self) -> None:
        """The first of the counted requests has its answer."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `answered` is the reference.
        counted, kept = self.counted, self.kept
        due = counted.popleft()
        self.completed += 1
        if due.size:
            self._account(-due.size)
        if len(kept) > len(counted):
            self.kept_size -= len(kept.popleft())
            if not kept and self.kept_at > KEPT_STEP:
                self.charge_kept()

    def forgive(self, count: int) -> None:
        """The last so many of the counted requests have none to come."""
        size = 0
        for _ in range(min(count, len(self.counted))):
            size += self.counted.pop().size
        self._account(-size)
        self.drop_kept()

    # Requests that are kept to be sent again

    def keep(self, payload: Payload, size: int) -> bool:
        """Keep the last counted request, which is whole. Returns whether `charge_kept` is to be
        called."""
        if size > KEPT_REQUEST_BYTES:
            self.drop_kept()
            return False
        if isinstance(payload, memoryview) and size * 2 < len(payload.obj):  # type: ignore[arg-type]  # bytes
            # A view keeps all that was read with it.
            payload = bytes(payload)
        self.kept.append(payload)
        self.kept_size = kept_size = self.kept_size + size
        return kept_size > self.kept_at

    def keep_pieces(self, pieces: tuple[Payload, ...], *, is_whole: bool) -> None:
        """Keep what has come of the last counted request; `keep_more` has the rest."""
        self.drops_slowly |= len(self.kept) < len(self.counted) - 1
        if is_whole and len(pieces) == 1:
            self.keep(pieces[0], len(pieces[0]))
            return
        first = pieces[0]
        if int.from_bytes(first[1:PREFIX_SIZE], "big") > KEPT_REQUEST_BYTES:
            self.drop_kept()
            return
        self._incoming = bytearray()
        for piece in pieces:
            self.keep_more(piece, is_whole=is_whole and piece is pieces[-1])

    def keep_more(self, piece: Payload, *, is_whole: bool) -> None:
        """Keep more of the last counted request, if its beginning is kept."""
        incoming = self._incoming
        if incoming is None:
            return
        incoming += piece
        self.kept_size += len(piece)
        if len(incoming) > KEPT_REQUEST_BYTES:
            self.drop_kept()
        elif is_whole:
            self.kept.append(bytes(incoming))
            self._incoming = None

    def drop_kept(self) -> None:
        """No counted request so far may be sent again."""
        self.kept.clear()
        self.drops_slowly = True
        self._incoming = None
        self.kept_size = 0
        self.charge_kept()

    def charge_kept(self) -> None:
        """Tell the memory budget how much is kept now. Nothing is kept any more where that is more
        than the limit, or too much is held."""
        grown = -self._kept_charged
        if self.kept_size > _CHARGED_AT_ONCE:
            grown += -(-self.kept_size // KEPT_STEP) * KEPT_STEP
        if self.kept_size and (
            self.kept_size > self._kept_limit
            or len(self.kept) > _MAX_KEPT
            or (grown > 0 and not self._memory_budget.admit_kept(grown))
        ):
            self.drop_kept()
            return
        self._kept_charged += grown
        self.kept_at = min(self._kept_charged or _CHARGED_AT_ONCE, self._kept_limit)
        self.drops_slowly |= self.kept_at > KEPT_STEP
        self._account(grown)

    def drop_answered(self, owed: int) -> None:
        """Keep no more requests than have no answers.

        Args:
            owed: how many counted requests have none.
        """
        kept = self.kept
        spare = len(kept) + (self._incoming is not None) - owed
        while spare > 0 and kept:
            self.kept_size -= len(kept.popleft())
            spare -= 1
        if spare > 0:
            self.drop_kept()  # it was answered before it was whole
        elif self.kept_at > KEPT_STEP and not self.kept_size:
            self.charge_kept()
        self.drops_slowly = spare < 0 or self.kept_at > KEPT_STEP

    def unanswered(self, but: int = 0) -> list[Payload] | None:
        """All requests that have no answer, as they are to be sent again.

        Args:
            but: the first so many of them, whose answers are there.

        Returns:
            None where some of them must not be sent again, or are not kept.
        """
        self.drop_answered(len(self.counted))
        kept = self.kept
        spare = but + len(kept) + (self._incoming is not None) - len(self.counted)
        if not 0 <= spare <= len(kept):
            return None
        return [*list(kept)[spare:], *self._begun]

    @property
    def _begun(self) -> list[Payload]:
        """The beginning of the last counted request, if that is kept and is not whole."""
        return [] if self._incoming is None else [bytes(self._incoming)]

    @property
    def is_incoming(self) -> bool:
        """Whether the last counted request is kept as far as it has come, and is not whole."""
        return self._incoming is not None

    def move(self, but: int, targets: Mapping[bytes, PendingResponses]) -> None:
        """Let others have the requests without an answer. To be called once `unanswered` has told
        that all of these are kept.

        Args:
            but: the first so many of them stay, whose answers are there.
            targets: who gets those for a model. Others stay, and are not kept any more.
        """
        counted = self.counted
        moving = [counted.pop() for _ in range(len(counted) - but)][::-1]
        whole = len(moving) - self.is_incoming
        requests = [*list(self.kept)[len(self.kept) - whole :], *self._begun]
        self.drop_kept()
        size = 0
        for number, (due, request) in enumerate(zip(moving, requests, strict=True)):
            target = targets.get(due.model)
            if target is None:
                counted.append(due)
            else:
                size += due.size
                target._take_moved(due, request, is_whole=number < whole)
        self._account(-size)

    def _take_moved(self, due: Due, request: Payload, *, is_whole: bool) -> None:
        size = _size(due.id, None) + len(due.model)
        if not self._account(size):
            return
        self.counted.append(due._replace(size=size))
        self.keep_pieces((request,), is_whole=is_whole)
        self.charge_kept()

    # Answers

    def may_owe(self, model: bytes) -> bool:
        """Whether answers of a model may be still to come. Takes as long as there are counted
        requests: for rare questions."""
        free = self.free_models
        if len(free) == FREE_MODELS or (self.is_unknown and not free):
            return True  # of any model: too many names, or too many answers came
        return model[:_NAME_BYTES] in free or any(due.model in (model, b"") for due in self.counted)

    def is_counted(self, head: bytes) -> bool | None:
        """Whether the next answer is the one that the first counted request waits for.

        Args:
            head: its first bytes, as `answer_names` wants them; looked at only where both kinds
                may come.

        Returns:
            None when more bytes are needed to tell.
        """
        if not self.is_mixed:
            return bool(self.counted)
        names = answer_names(head)
        if names is None:
            return None
        first = self.counted[0]
        # Counting one too many costs the order of answers; one too few would hold up all that
        # follow.
        if names.model:
            # What a model does may have become known, or have changed, during the stream.
            return names.model == first.model or names.model not in self.free_models
        # An error before the inference names no model.
        return not first.id or names.id == first.id


def _unfinished_size(names: AnswerNames) -> int:
    """Bytes that remembered requests of one name take."""
    return _UNFINISHED_BYTES + len(names.model) + len(names.id)


def _size(name: bytes, key: SequenceKey | None) -> int:
    """Bytes that a remembered request takes."""
    size = _ENTRY_BYTES + len(name)
    if key is not None:
        size += len(key.model)
        if isinstance(key.id, str):
            size += 4 * len(key.id)  # of the widest characters
    return size
