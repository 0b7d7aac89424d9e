"""Statistics of a name that variants serve: one answer out of those of the models."""

from __future__ import annotations

import json

import pytest

from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.proxy.fan_out.named_statistics import NamedStatistics
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from tests.unit.proxy.fan_out.stage import grpc_question, http_question

MODELS = ((b"stable", b""), (b"canary", b"2"))


def names(name: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return MODELS if name == b"detector" else ()


class Tritons:
    """Answers for some models with their counts; notes what it is asked."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.asked: list[tuple[str, str]] = []

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        if question.protocol is AppProtocol.HTTP:
            return self._http(question)
        request = pb.ModelStatisticsRequest.FromString(question.body)
        self.asked.append((request.name, request.version))
        if request.name not in self.counts:
            return FanOutReply(status=5, detail=f"no {request.name}")
        answer = pb.ModelStatisticsResponse()
        count = self.counts[request.name]
        answer.model_stats.add(name=request.name, version="1", inference_count=count)
        return FanOutReply(status=0, body=answer.SerializeToString(), backends=("gpu-0",))

    def _http(self, question: FanOutRequest) -> FanOutReply:
        parts = question.target.decode().split("/")[3:-1]
        self.asked.append((parts[0], parts[2] if len(parts) > 1 else ""))
        if parts[0] not in self.counts:
            return FanOutReply(status=400, body=b'{"error":"no %b"}' % parts[0].encode())
        entry = {"name": parts[0], "version": "1", "inference_count": self.counts[parts[0]]}
        body = json.dumps({"model_stats": [entry]}).encode()
        return FanOutReply(status=200, body=body, backends=("gpu-0",))


def about(protocol: AppProtocol, name: str, version: str = "") -> FanOutRequest:
    if protocol is AppProtocol.GRPC:
        request = pb.ModelStatisticsRequest(name=name, version=version)
        return grpc_question("ModelStatistics", request.SerializeToString())
    path = f"/v2/models/{name}{'/versions/' + version if version else ''}/stats"
    return http_question(b"GET", path.encode())


def told(reply: FanOutReply, protocol: AppProtocol) -> list[tuple[str, str, int]]:
    if protocol is AppProtocol.GRPC:
        found = pb.ModelStatisticsResponse.FromString(reply.body).model_stats
        return [(each.name, each.version, each.inference_count) for each in found]
    listed = json.loads(reply.body)["model_stats"]
    return [(each["name"], each["version"], each["inference_count"]) for each in listed]


@pytest.mark.parametrize("protocol", AppProtocol)
async def test_counts_of_all_variants_are_summed_under_the_name(protocol: AppProtocol) -> None:
    tritons = Tritons({"stable": 95, "canary": 5})
    reply = await NamedStatistics(tritons, names).ask(about(protocol, "detector"))
    assert told(reply, protocol) == [("detector", "1", 100)]
    assert tritons.asked == [("stable", ""), ("canary", "2")]
    assert reply.backends == ("gpu-0",)


@pytest.mark.parametrize("protocol", AppProtocol)
async def test_a_variant_without_a_model_counts_nothing(protocol: AppProtocol) -> None:
    reply = await NamedStatistics(Tritons({"stable": 95}), names).ask(about(protocol, "detector"))
    assert told(reply, protocol) == [("detector", "1", 95)]


@pytest.mark.parametrize("protocol", AppProtocol)
async def test_the_first_error_is_told_where_no_model_is_there(protocol: AppProtocol) -> None:
    reply = await NamedStatistics(Tritons({}), names).ask(about(protocol, "detector"))
    assert "no stable" in reply.detail + reply.body.decode()


@pytest.mark.parametrize("protocol", AppProtocol)
@pytest.mark.parametrize(("name", "version"), [("other", ""), ("detector", "1"), ("", "")])
async def test_other_questions_pass(protocol: AppProtocol, name: str, version: str) -> None:
    tritons = Tritons({})
    await NamedStatistics(tritons, names).ask(about(protocol, name or "x", version))
    assert tritons.asked == [(name or "x", version)]
