"""Answers of a `ModelStreamInfer`: which request one belongs to, and errors of our own."""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.compression import inflated_start
from lb.wire.grpc.message import PREFIX_SIZE, frame_message
from lb.wire.protobuf import BYTES, ProtobufError, fields

ANSWER_HEAD_BYTES: Final = 8 * 1024
"""Looked at of an answer at most: an error may come before the names, with a traceback in it."""

# Fields of ModelStreamInferResponse, and of the ModelInferResponse in it.
_ERROR: Final = 1
_INFER_RESPONSE: Final = 2
_MODEL: Final = 1
_ID: Final = 3


class AnswerNames(NamedTuple):
    """What an answer says of the request that it belongs to; empty where it says nothing."""

    model: bytes = b""
    id: bytes = b""


def answer_names(head: bytes) -> AnswerNames | None:
    """The names in an answer.

    Args:
        head: its first bytes, prefix included: all of it or `ANSWER_HEAD_BYTES` are enough.

    Returns:
        None when more bytes are needed to tell.
    """
    if len(head) < PREFIX_SIZE:
        return None
    size = int.from_bytes(head[1:PREFIX_SIZE], "big")
    is_enough = len(head) >= min(PREFIX_SIZE + size, ANSWER_HEAD_BYTES)
    message = head[PREFIX_SIZE : PREFIX_SIZE + size]
    if head[0]:
        if not is_enough:
            return None
        message, size = inflated_start(message, ANSWER_HEAD_BYTES)
    try:
        for number, kind, start, end in fields(message, 0, size):
            if number == _INFER_RESPONSE and kind == BYTES:
                return _names(message, start, end)
    except (IndexError, ProtobufError):
        pass
    else:
        return AnswerNames()
    return AnswerNames() if is_enough else None


def _names(message: bytes, start: int, end: int) -> AnswerNames:
    names = {_MODEL: b"", _ID: b""}
    for number, kind, begin, stop in fields(message, start, end):
        if kind == BYTES and number in names:
            if stop > len(message):
                raise IndexError
            names[number] = message[begin:stop]
        if number >= _ID:
            break
    return AnswerNames(names[_MODEL], names[_ID])


def error_text(message: bytes) -> str:
    """The text of an error among the answers, which is given with its prefix; empty where there is
    none to be read."""
    try:
        for number, kind, start, end in fields(message, PREFIX_SIZE, len(message)):
            if number == _ERROR and kind == BYTES:
                return message[start:end].decode(errors="replace")
            break
    except (IndexError, ProtobufError):
        pass
    return ""


def error_answer(request_id: bytes, text: str) -> bytes:
    """An error in the stream, as Triton writes those of requests that it does not run: the id of
    the request and no more. Prefix included."""
    answer = pb.ModelInferResponse(id=request_id.decode(errors="replace"))
    return frame_message(
        pb.ModelStreamInferResponse(error_message=text, infer_response=answer).SerializeToString()
    )
