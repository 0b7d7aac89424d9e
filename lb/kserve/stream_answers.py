"""Answers of a `ModelStreamInfer`: which request one belongs to, and errors of our own."""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import ERROR_TAG
from lb.wire.grpc.compression import inflated_start
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE, frame_message
from lb.wire.http2.flow import Payload
from lb.wire.protobuf import BYTES, ProtobufError, fields

ANSWER_HEAD_BYTES: Final = 8 * 1024
"""Looked at of an answer at most: an error may come before the names, with a traceback in it."""

FINAL: Final = b"\x0a\x15triton_final_response\x12\x02\x08\x01"
"""The parameter `triton_final_response`, which is true, as all implementations of Protobuf write
it."""

# Fields of ModelStreamInferResponse, and of the ModelInferResponse in it.
_ERROR: Final = 1
_INFER_RESPONSE: Final = 2
_MODEL: Final = 1
_ID: Final = 3
_ERROR_START: Final = bytes((ERROR_TAG,))


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


def completed_by(head: bytes) -> AnswerNames | None:
    """The names of the request that an answer completes: it is the last one of a decoupled model,
    or an error that names the request.

    Args:
        head: its first bytes, as `answer_names` wants them.

    Returns:
        None where others may follow, as far as is known.
    """
    message = head[PREFIX_SIZE:]
    if head[0]:
        message, _ = inflated_start(message, ANSWER_HEAD_BYTES)
    is_error = message[:1] == _ERROR_START
    names = answer_names(head) if is_error or FINAL in message else None
    return None if names is None or (is_error and not names.id) else names


class LastAnswers:
    """Finds the answers that complete requests of decoupled models, however they are cut."""

    __slots__ = ("_cutter", "_head", "_is_known")

    def __init__(self, cutter: MessageCutter) -> None:
        """
        Args:
            cutter: at the first byte to come.
        """
        self._cutter = cutter
        self._head = b""
        """The first bytes of the answer under way."""
        self._is_known = cutter.is_between
        """They are the first ones."""

    def feed(self, payload: bytes | memoryview) -> list[AnswerNames]:
        """Take the next bytes of the stream. Returns the names of the requests that they
        complete."""
        found = []
        cutter = self._cutter
        at, size = 0, len(payload)
        while at < size:
            start, at = at, cutter.advance(payload, at)
            if self._is_known:
                room = ANSWER_HEAD_BYTES - len(self._head)
                self._head += bytes(payload[start : min(at, start + room)])
            if not cutter.is_between:
                continue
            names = completed_by(self._head) if self._is_known else None
            if names is not None:
                found.append(names)
            self._head, self._is_known = b"", True
        return found


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


def whole_error(payload: Payload) -> str:
    """The text of an error among the answers that begins and ends with a piece of them; empty where
    that is something else."""
    size = len(payload)
    if (
        not PREFIX_SIZE < size <= ANSWER_HEAD_BYTES
        or payload[0]
        or payload[PREFIX_SIZE] != ERROR_TAG
        or int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE != size
    ):
        return ""
    return error_text(bytes(payload))


def error_answer(request_id: bytes, text: str) -> bytes:
    """An error in the stream, as Triton writes those of requests that it does not run: the id of
    the request and no more. Prefix included."""
    answer = pb.ModelInferResponse(id=request_id.decode(errors="replace"))
    return frame_message(
        pb.ModelStreamInferResponse(error_message=text, infer_response=answer).SerializeToString()
    )
