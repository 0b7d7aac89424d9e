"""Statistics of several servers as those of one. The bytes are a Triton 2.51's."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import ParseDict

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.counters import MAX_ROWS
from lb.kserve.merge.form import Unreadable
from lb.kserve.merge.memory import MAX_BASE, StatisticsMemory
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics
from lb.kserve.merge.steps import STEP_BYTES, finish
from tests.fakes.merges import AtOnce
from tests.fakes.work import instructions

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


def http(*bodies: bytes, memory: StatisticsMemory | None = None, at: float = 1.0) -> bytes:
    """The statistics of some backends; one after the other they are a, b and so on."""
    merge = AtOnce(HttpStatistics(memory or StatisticsMemory()))
    return merge.combine([
        (chr(97 + place), merge.read(body, at)) for place, body in enumerate(bodies)
    ])  # fmt: skip


def grpc(*messages: bytes, memory: StatisticsMemory | None = None) -> pb.ModelStatisticsResponse:
    """The same over gRPC."""
    merge = AtOnce(GrpcStatistics(memory or StatisticsMemory()))
    whole = merge.combine([
        (chr(97 + place), merge.read(each, 3.0)) for place, each in enumerate(messages)
    ])  # fmt: skip
    return pb.ModelStatisticsResponse.FromString(whole)


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
    merge = AtOnce(GrpcStatistics(StatisticsMemory()))
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
        AtOnce(HttpStatistics(StatisticsMemory())).read(body)


def rows_from(first: int, count: int) -> bytes:
    """Statistics of one model with so many batch sizes and keys of responses."""
    duration = {"count": 1, "ns": 5}
    return json.dumps({
        "model_stats": [{
            "name": "m", "version": "1", "inference_count": first + count,
            "response_stats": {
                str(key): {"success": duration} for key in range(first, first + count)
            },
            "batch_stats": [
                {"batch_size": size, "compute_infer": duration}
                for size in range(first + count, first, -1)
            ],
        }]
    }).encode()  # fmt: skip


def as_message(body: bytes) -> bytes:
    """The same for gRPC."""
    message = pb.ModelStatisticsResponse()
    ParseDict(json.loads(body), message)
    return message.SerializeToString()


@pytest.mark.parametrize("count", [600, 5000])
def test_of_rows_without_end_the_first_count(count: int) -> None:
    body = rows_from(0, count)
    (entry,) = json.loads(http(body, body))["model_stats"]
    assert [row["batch_size"] for row in entry["batch_stats"]] == list(range(1, MAX_ROWS + 1))
    assert list(entry["response_stats"]) == [str(key) for key in range(MAX_ROWS)]
    assert entry["response_stats"]["5"]["success"]["count"] == 2
    (found,) = grpc(as_message(body), as_message(body)).model_stats
    assert [row.batch_size for row in found.batch_stats] == list(range(1, MAX_ROWS + 1))
    assert {int(key) for key in found.response_stats} == set(range(MAX_ROWS))
    assert found.inference_count == 2 * count


@pytest.mark.parametrize("is_grpc", [False, True])
def test_what_is_remembered_of_rows_that_never_repeat_is_bounded(is_grpc: bool) -> None:
    memory = StatisticsMemory()
    sizes = []
    for view in range(40):
        body = rows_from(1000 * view, 1000)
        if is_grpc:
            (entry,) = grpc(as_message(body), memory=memory).model_stats
            assert entry.inference_count >= 1000 * (view + 1)
        else:
            (found,) = json.loads(http(body, memory=memory, at=float(view)))["model_stats"]
            assert found["inference_count"] >= 1000 * (view + 1)
            assert len(found["batch_stats"]) + len(found["response_stats"]) <= MAX_BASE
        sizes.append(len(memory))
    assert max(sizes) <= MAX_BASE + 4 * MAX_ROWS + 100
    assert sizes[-1] == sizes[-2]


def test_many_models_are_merged_in_steps_that_are_bounded() -> None:
    entries = [json.loads(SIMPLE) | {"name": f"m{at:04}"} for at in range(2000)]
    body = json.dumps({"model_stats": entries}, separators=(",", ":")).encode()
    merge = HttpStatistics(StatisticsMemory())
    reading = merge.read(body)
    steps = len(list(reading))
    assert steps >= len(body) // (2 * STEP_BYTES)
    answer = finish(merge.read(body))
    assert len(list(merge.combine([("a", answer), ("b", answer)]))) >= len(body) // STEP_BYTES
    assert http(body) == body


@pytest.mark.parametrize("is_grpc", [False, True])
def test_a_model_of_many_backends_is_summed_in_steps_that_are_bounded(is_grpc: bool) -> None:
    memory = StatisticsMemory()
    memory.asked = 300
    said = {("response_stats", str(at), "success", "count"): 1 for at in range(200)}
    for at in range(memory.asked):
        memory.take(f"gone{at}", ("simple", "1"), said, 0.0, 1.0)
    merge = (GrpcStatistics if is_grpc else HttpStatistics)(memory)
    work = merge.combine([("here", finish(merge.read(MESSAGE if is_grpc else ONE)))])
    over: list[bool | None] = [None]
    steps: list[int] = []
    while not over[-1]:
        steps.append(instructions(lambda: over.append(next(work, True))))
    assert max(steps) < 200_000
    assert sum(steps) > 5 * 300 * 200


@pytest.mark.parametrize(
    "entry",
    [
        b'{"name":"m","batch_stats":[%b]}' % b",".join([b"{}"] * 9000),
        b'{"name":"m","batch_stats":[{"batch_size":1,"x":[%b]}]}' % b",".join([b"1"] * 9000),
        b'{"name":"m","x":[%b]}' % b",".join([b"1"] * 9000),
        b"{%b}" % b",".join(b'"%d":%d' % (at, at) for at in range(9000)),
        b'{"name":"m","memory_usage":[%b]}'
        % b",".join([b'{"type":"GPU","id":0,"byte_size":1}'] * 2000),
        b"[%b]" % b",".join([b"1"] * 9000),
    ],
    ids=["no sizes", "long row", "long member", "many names", "many devices", "no object"],
)
def test_long_entries_that_are_no_statistics_are_refused(entry: bytes) -> None:
    with pytest.raises(ValueError, match=r"statistics|answer|memory"):
        AtOnce(HttpStatistics(StatisticsMemory())).read(b'{"model_stats":[%b]}' % entry)


def test_a_number_that_is_none_leaves_out_the_answer_that_has_it() -> None:
    merge = AtOnce(HttpStatistics(StatisticsMemory()))
    bad = ONE.replace(b'"inference_count":1', b'"inference_count":%d' % 2**64)
    with pytest.raises(Unreadable) as error:
        merge.combine([("a", merge.read(ONE)), ("b", merge.read(bad))])
    assert error.value.at == 1
