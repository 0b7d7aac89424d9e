"""Statistics of a name that variants serve and that is no model: the sum of those of the models of
its variants, under the name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Merge, Unreadable, write_json
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics, StatisticsAnswer
from lb.kserve.merge.steps import Steps
from lb.net.steps import between_others
from lb.proxy.fan_out.question import FanOut, FanOutReply, FanOutRequest

_OPERATION: Final = "ModelStatistics"
_TARGET: Final = re.compile(rb"/v2/models/[^/?]+/stats")
"""Without a version, which would mean a model."""

ModelsOf = Callable[[bytes], Sequence[tuple[bytes, bytes]]]
"""Returns model and version (empty: any) of the variants of a name; none where it has no variants
or is a model itself."""


class NamedStatistics:
    """Implements `FanOut`: passes on what it is asked, one question for each model of a name."""

    def __init__(self, inner: FanOut, models_of: ModelsOf) -> None:
        self._inner = inner
        self._models_of = models_of

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        """See `FanOut`."""
        name = _name(question) if question.operation.name == _OPERATION else b""
        models = dict.fromkeys(self._models_of(name)) if name else {}
        if not models:
            return await self._inner.ask(question)
        replies = [await self._inner.ask(_about(question, *each)) for each in models]
        good = [each for each in replies if not _is_error(question, each)]
        if not good:
            return replies[0]
        try:
            body = await between_others(_combined(question, name, good))
        except (Unreadable, ValueError):  # counts beyond what Triton's have room for
            return good[0]
        names = dict.fromkeys(backend for each in replies for backend in each.backends)
        return replace(good[0], body=body, backends=tuple(names), shared=None)


def _name(question: FanOutRequest) -> bytes:
    """The model that is asked about without a version; empty where there is none."""
    if question.protocol is AppProtocol.HTTP:
        return question.model if _TARGET.fullmatch(question.target.partition(b"?")[0]) else b""
    try:
        request = pb.ModelStatisticsRequest.FromString(question.body)
    except DecodeError:
        return b""
    return b"" if request.version else request.name.encode()


def _about(question: FanOutRequest, model: bytes, version: bytes) -> FanOutRequest:
    """The question about a model."""
    if question.protocol is AppProtocol.HTTP:
        at = model + (b"/versions/%b" % version if version else b"")
        return replace(question, model=model, target=b"/v2/models/%b/stats" % at)
    request = pb.ModelStatisticsRequest(name=model.decode(), version=version.decode())
    return replace(question, body=request.SerializeToString())


def _is_error(question: FanOutRequest, reply: FanOutReply) -> bool:
    return bool(reply.status) if question.protocol is AppProtocol.GRPC else reply.status != 200


def _combined(question: FanOutRequest, name: bytes, replies: Sequence[FanOutReply]) -> Steps[bytes]:
    """One answer of several, in which all models have the name.

    Raises:
        Unreadable, ValueError: they cannot be summed.
    """
    is_grpc = question.protocol is AppProtocol.GRPC
    memory = StatisticsMemory()
    merge: Merge[StatisticsAnswer] = GrpcStatistics(memory) if is_grpc else HttpStatistics(memory)
    answers = []
    for number, reply in enumerate(replies):
        answer = yield from merge.read(reply.body)
        answer.spans = {("", version): span for (_, version), span in answer.spans.items()}
        answers.append((str(number), answer))
    body = yield from merge.combine(answers)
    text = name.decode()
    if is_grpc:
        message = pb.ModelStatisticsResponse.FromString(body)
        for entry in message.model_stats:
            entry.name = text
        return message.SerializeToString()
    found: dict[str, Any] = json.loads(body)
    for each in found["model_stats"]:
        each["name"] = text
    return write_json(found)
