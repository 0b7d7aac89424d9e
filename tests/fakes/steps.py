"""The step that a message of gRPC is of, as tests ask for it."""

from __future__ import annotations

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.inspect import Message, inspect


class Incomplete(Exception):
    """More of the message is needed to tell."""


def grpc_step(message: Message, model: bytes, size: int | None = None) -> SequenceStep | None:
    """What a ModelInferRequest says of its sequence; None when it is none of a sequence.

    See `inspect`; the name of the model is `model`, whatever the message says.

    Raises:
        Incomplete: the part is too short.
    """
    found = inspect(message, size)
    if not found.is_complete:
        raise Incomplete
    step = found.step
    return None if step is None else step._replace(key=SequenceKey(model, step.key.id))
