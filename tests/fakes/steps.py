"""The step that a message of gRPC is of, as tests ask for it."""

from __future__ import annotations

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.sequence import Message, grpc_asked


def grpc_step(message: Message, model: bytes, size: int | None = None) -> SequenceStep | None:
    """What a ModelInferRequest says of its sequence; None when it is none of a sequence.

    See `grpc_asked`; the name of the model is `model`, whatever the message says.
    """
    step = grpc_asked(message, size).step
    return None if step is None else step._replace(key=SequenceKey(model, step.key.id))
