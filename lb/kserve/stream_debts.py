"""What a backend owes on a stream of inferences: which of its answers are due, and in which order.

A model that is not decoupled gives exactly one answer to each request, in the order of the
requests. How many a decoupled one gives to a request nobody can tell from outside (Triton's
documentation of decoupled models), so only its sequences are remembered.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.stream_answers import answer_names

FREE_MODELS: Final = 256
"""Names that are remembered; they come from clients."""
_NAME_BYTES: Final = 1024
"""Of each; no server has models with longer ones."""
OPEN_SEQUENCES: Final = 4096
ENDED_S: Final = 30.0
"""How long after its END a sequence may still be owed an answer."""


class StreamMessage(NamedTuple):
    """What of one request on a stream decides where it goes and what comes back."""

    model: bytes = b""
    version: bytes = b""
    id: bytes = b""
    step: SequenceStep | None = None
    regions: tuple[bytes, ...] = ()
    has_one_answer: bool = False
    """Its model is known not to be decoupled."""


class SequenceDebt(NamedTuple):
    """The last request of a sequence whose answers are not counted."""

    id: bytes
    ended_at: float
    """When it was sent, if it was the last step; otherwise 0."""
    began_here: bool
    """So did the first step."""

    def is_over(self, now: float) -> bool:
        """Whether it ended so long ago that no answer is still to come."""
        return 0 < self.ended_at < now - ENDED_S


class Debts:
    """What one backend owes on one stream."""

    __slots__ = ("counted", "free_models", "is_unknown", "sequences")

    def __init__(self) -> None:
        self.counted: deque[StreamMessage] = deque()
        """Requests that have exactly one answer, still to come, in order."""
        self.free_models: set[bytes] = set()
        """Models of the other requests so far."""
        self.is_unknown = False
        """There were requests of them that belong to no sequence."""
        self.sequences: dict[SequenceKey, SequenceDebt] = {}
        """Of those models; the one without a request for longest is first."""

    @property
    def is_mixed(self) -> bool:
        """Whether some answers are counted and others may come between them."""
        return bool(self.counted and self.free_models)

    def note(self, message: StreamMessage, now: float) -> None:
        """A request goes to the backend."""
        if message.has_one_answer:
            self.counted.append(message)
            return
        if len(self.free_models) < FREE_MODELS:
            self.free_models.add(message.model[:_NAME_BYTES])
        step = message.step
        if step is None:
            self.is_unknown = True
            return
        sequences = self.sequences
        before = sequences.pop(step.key, None)
        while sequences:
            key = next(iter(sequences))
            if len(sequences) < OPEN_SEQUENCES and not sequences[key].is_over(now):
                break
            del sequences[key]
        sequences[step.key] = SequenceDebt(
            message.id,
            now if step.is_end else 0.0,
            step.is_start or (before is not None and before.began_here),
        )

    def begun(self) -> set[SequenceKey]:
        """The sequences whose first step is owed an answer, as far as is known."""
        counted = (message.step for message in self.counted)
        keys = {step.key for step in counted if step is not None and step.is_start}
        return keys | {key for key, debt in self.sequences.items() if debt.began_here}

    def answered(self, count: int) -> None:
        """So many of the counted requests have their answers."""
        for _ in range(min(count, len(self.counted))):
            self.counted.popleft()

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
