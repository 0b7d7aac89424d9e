"""Statistics of several servers as those of one. The bytes are a Triton 2.51's."""

from __future__ import annotations

import json

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics

SIMPLE = (
    b'{"name":"simple","version":"1","last_inference":1795259527273,"inference_count":1,'
    b'"execution_count":1,"inference_stats":{"success":{"count":1,"ns":22400119},'
    b'"fail":{"count":0,"ns":0},"queue":{"count":1,"ns":40811},'
    b'"compute_input":{"count":1,"ns":159587},"compute_infer":{"count":1,"ns":21750393},'
    b'"compute_output":{"count":1,"ns":444260},"cache_hit":{"count":0,"ns":0},'
    b'"cache_miss":{"count":0,"ns":0}},"response_stats":{},"batch_stats":[{"batch_size":1,'
    b'"compute_input":{"count":1,"ns":159587},"compute_infer":{"count":1,"ns":21750393},'
    b'"compute_output":{"count":1,"ns":444260}}],"memory_usage":[]}'
)
ONE = b'{"model_stats":[' + SIMPLE + b"]}"
MESSAGE = (
    b"\ne\n\x06simple\x12\x011\x18\xe9\xe0\xb9\xee\x9f4 \x01(\x0120\n\x07\x08\x01\x10\xf7\x98"
    b'\xd7\n\x12\x00\x1a\x06\x08\x01\x10\xeb\xbe\x02"\x06\x08\x01\x10\xe3\xde\t*\x07\x08\x01'
    b"\x10\xf9\xc4\xaf\n2\x06\x08\x01\x10\xe4\x8e\x1b:\x00B\x00:\x1b\x08\x01\x12\x06\x08\x01\x10"
    b'\xe3\xde\t\x1a\x07\x08\x01\x10\xf9\xc4\xaf\n"\x06\x08\x01\x10\xe4\x8e\x1b'
)


def http(*bodies: bytes, memory: StatisticsMemory | None = None) -> bytes:
    """The statistics of some backends; one after the other they are a, b and so on."""
    memory = memory or StatisticsMemory()
    merge = HttpStatistics(memory)
    answers = [(chr(97 + at), merge.read(body)) for at, body in enumerate(bodies)]
    for name, answer in answers:
        for key, counters in answer.counters:
            memory.take(name, key, counters, 1.0, 2.0)
    return merge.combine(answers)


def grpc(*messages: bytes, memory: StatisticsMemory | None = None) -> pb.ModelStatisticsResponse:
    """The same over gRPC."""
    memory = memory or StatisticsMemory()
    merge = GrpcStatistics(memory)
    answers = [(chr(97 + at), merge.read(each)) for at, each in enumerate(messages)]
    for name, answer in answers:
        for key, counters in answer.counters:
            memory.take(name, key, counters, 3.0, 4.0)
    return pb.ModelStatisticsResponse.FromString(merge.combine(answers))


def test_the_statistics_of_one_server_stay_as_they_are() -> None:
    assert http(ONE) == ONE
    assert grpc(MESSAGE) == pb.ModelStatisticsResponse.FromString(MESSAGE)
    assert http(b'{"model_stats":[]}') == b'{"model_stats":[]}'


def test_two_servers_are_summed() -> None:
    (entry,) = json.loads(http(ONE, ONE.replace(b"1795259527273", b"1795259527999")))["model_stats"]
    assert entry["inference_count"] == 2
    assert entry["last_inference"] == 1795259527999
    assert entry["inference_stats"]["success"] == {"count": 2, "ns": 44800238}
    assert entry["batch_stats"][0]["compute_infer"] == {"count": 2, "ns": 43500786}
    assert list(entry) == list(json.loads(SIMPLE))


def test_grpc_is_summed_alike_and_shares_the_memory() -> None:
    memory = StatisticsMemory()
    http(ONE, ONE, memory=memory)
    (entry,) = grpc(MESSAGE, MESSAGE, memory=memory).model_stats
    assert entry.inference_count == 2
    assert entry.inference_stats.success == pb.StatisticDuration(count=2, ns=44800238)
    assert entry.last_inference == 1795259527273


def test_batches_are_summed_by_size_and_responses_by_key() -> None:
    def body(sizes: tuple[int, ...], keys: tuple[str, ...]) -> bytes:
        duration = {"count": 1, "ns": 5}
        return json.dumps({
            "model_stats": [{
                "name": "m", "version": "1",
                "response_stats": {key: {"success": duration} for key in keys},
                "batch_stats": [{"batch_size": size, "compute_infer": duration} for size in sizes],
            }]
        }).encode()  # fmt: skip

    (entry,) = json.loads(http(body((4, 8), ("0",)), body((1, 4), ("0", "1"))))["model_stats"]
    counts = [(row["batch_size"], row["compute_infer"]["count"]) for row in entry["batch_stats"]]
    assert counts == [(1, 1), (4, 2), (8, 1)]
    responses = {key: each["success"]["count"] for key, each in entry["response_stats"].items()}
    assert responses == {"0": 2, "1": 1}


def test_models_are_listed_by_name_and_version_whoever_has_them() -> None:
    def body(*models: tuple[str, str]) -> bytes:
        entries = [{"name": name, "version": version} for name, version in models]
        return json.dumps({"model_stats": entries}).encode()

    merged = json.loads(http(body(("b", "10")), body(("b", "9"), ("a", "1"))))["model_stats"]
    assert [(each["name"], each["version"]) for each in merged] == [
        ("a", "1"),
        ("b", "9"),
        ("b", "10"),
    ]


def test_a_model_that_nobody_has_any_more_is_not_listed() -> None:
    memory = StatisticsMemory()
    http(ONE, memory=memory)
    assert http(b'{"model_stats":[]}', memory=memory) == b'{"model_stats":[]}'


def test_memory_is_summed_by_device_over_those_who_answer() -> None:
    memory = StatisticsMemory()
    rows = b'[{"type":"GPU","id":0,"byte_size":10},{"type":"CPU","id":0,"byte_size":1}]'
    body = ONE.replace(b'"memory_usage":[]', b'"memory_usage":' + rows)
    other = ONE.replace(
        b'"memory_usage":[]', b'"memory_usage":[{"type":"GPU","id":0,"byte_size":5}]'
    )
    (entry,) = json.loads(http(other, body, memory=memory))["model_stats"]
    assert entry["memory_usage"] == [
        {"type": "GPU", "id": 0, "byte_size": 15},
        {"type": "CPU", "id": 0, "byte_size": 1},
    ]
    (entry,) = json.loads(http(other, memory=memory))["model_stats"]
    assert entry["memory_usage"] == [{"type": "GPU", "id": 0, "byte_size": 5}]
    usage = [pb.MemoryUsage(type="GPU", id=0, byte_size=4), pb.MemoryUsage(type="CPU", byte_size=2)]
    messages = [
        pb.ModelStatisticsResponse(
            model_stats=[pb.ModelStatistics(name="m", memory_usage=usage[: at + 1])]
        ).SerializeToString()
        for at in range(2)
    ]
    (found,) = grpc(*messages).model_stats
    assert list(found.memory_usage) == [pb.MemoryUsage(type="GPU", id=0, byte_size=8), usage[1]]


def test_fields_that_are_not_known_survive() -> None:
    message = MESSAGE[:1] + bytes((MESSAGE[1] + 5,)) + MESSAGE[2:] + b"\xca\x3e\x02hi"
    merge = GrpcStatistics(StatisticsMemory())
    assert b"\xca\x3e\x02hi" in merge.combine([("a", merge.read(message))])


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"model_stats":3}',
        b'{"model_stats":[3]}',
        b'{"model_stats":[{"memory_usage":[{}]}]}',
        b'{"model_stats":[{"memory_usage":3}]}',
        b'{"model_stats":[{"name":"m"},{"name":"m"}]}',
    ],
)
def test_what_is_no_statistics_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|row"):
        HttpStatistics(StatisticsMemory()).read(body)
