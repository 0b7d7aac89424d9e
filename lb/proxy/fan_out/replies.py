"""The one answer that a client gets for what several backends said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lb.domain.backend import AppProtocol
from lb.domain.control import Reach
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.kserve.conversion import answer_to_http, answer_to_message
from lb.kserve.merge.form import write_json
from lb.proxy.failure import grpc_status, http_body, http_status
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.fan_out.result import Result
from lb.wire.grpc.status import GrpcStatus

JSON: Final = b"application/json"
_SHOWN: Final = 8
"""Failures that an error tells in full, and how much of each: it has to fit into trailers."""
_SHOWN_CHARACTERS: Final = 400
_FOLDER: Final = re.compile(r"/folder[0-9A-Za-z]{6}(?=/)")
"""Where a Triton puts the files of a load, by another name each time."""


def refusal(
    question: FanOutRequest, reason: Reason, detail: str, asked: Sequence[Reach | Result] = ()
) -> FanOutReply:
    """An error of our own."""
    backends = tuple(reach.backend.name for reach in asked)
    if question.protocol is AppProtocol.GRPC:
        status = int(grpc_status(reason))
        return FanOutReply(status=status, detail=detail, reason=reason, backends=backends)
    return FanOutReply(
        status=http_status(reason), body=http_body(detail), reason=reason, backends=backends
    )


def merged(question: FanOutRequest, body: bytes, results: Sequence[Result]) -> FanOutReply:
    """A good answer that was put together here."""
    is_grpc = question.protocol is AppProtocol.GRPC
    status = int(GrpcStatus.OK) if is_grpc else 200
    return FanOutReply(status=status, body=body, content_type=JSON, backends=_names(results))


def success(question: FanOutRequest, results: Sequence[Result]) -> FanOutReply:
    """The answer of the first that succeeded, in the client's protocol if there is one.

    Raises:
        ValueError: it cannot be put into that.
    """
    good = [result for result in results if result.is_ok]
    own = next((result for result in good if result.protocol is question.protocol), None)
    if own is not None:
        return _as_given(own, results)
    convert = answer_to_message if question.protocol is AppProtocol.GRPC else answer_to_http
    return merged(question, convert(question.operation.name, good[0].body), results)


def failure(
    question: FanOutRequest, results: Sequence[Result], not_asked: Sequence[Reach] = ()
) -> FanOutReply:
    """The error of those that failed: one server's own words where all say the same."""
    failed = [result for result in results if not result.is_ok]
    if len(failed) == len(results) and _are_alike(failed, question.protocol):
        own = next((each for each in failed if each.protocol is question.protocol), None)
        if own is not None:
            return _as_given(own, results)
        text = failed[0].detail
    else:
        text = _description(question.operation, failed, len(results), not_asked)
    status, reason, names = (
        failed[0].status_in(question.protocol),
        failed[0].reason,
        _names(results),
    )
    if question.protocol is AppProtocol.GRPC:
        return FanOutReply(status=_canonical(status), detail=text, reason=reason, backends=names)
    # To the byte what Triton writes: the words may be its own, in the other protocol.
    body = write_json({"error": text})
    return FanOutReply(status=status, body=body, reason=reason, backends=names)


def _as_given(result: Result, results: Sequence[Result]) -> FanOutReply:
    is_grpc = result.protocol is AppProtocol.GRPC
    return FanOutReply(
        status=_canonical(result.status) if is_grpc else result.status,
        body=result.body,
        detail=result.detail,
        content_type=result.content_type,
        backends=_names(results),
    )


def _canonical(status: int) -> int:
    """A gRPC status that clients know."""
    return status if status in GrpcStatus.__members__.values() else int(GrpcStatus.UNKNOWN)


def _are_alike(failed: Sequence[Result], protocol: AppProtocol) -> bool:
    """Whether all give the same answer, which is an error."""
    said = {(each.status_in(protocol), _FOLDER.sub("/folder", each.detail)) for each in failed}
    return len(said) == 1 and all(each.reason is None for each in failed)


def _description(
    operation: Operation, failed: Sequence[Result], asked: int, not_asked: Sequence[Reach]
) -> str:
    shown = [f"{each.backend.name}: {_short(each.detail)}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        shown.append(f"and {len(failed) - _SHOWN} more")
    text = f"{operation.name} failed on {len(failed)} of {asked} backends: {'; '.join(shown)}"
    if not_asked:
        names = ", ".join(reach.backend.name for reach in not_asked[:_SHOWN])
        text += f"; not asked any more: {names}"
    return text


def _short(text: str) -> str:
    text = text or "no reason given"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _names(results: Sequence[Result]) -> tuple[str, ...]:
    return tuple(result.backend.name for result in results if not result.is_unreached)
