"""Merged answers, whatever backends say, leave, come back and begin anew."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Disagreement, Unreadable, write_json
from lb.kserve.merge.index import GrpcIndex, HttpIndex
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.metadata import GrpcMetadata, HttpMetadata
from lb.kserve.merge.regions import GrpcCudaRegions, GrpcSystemRegions, HttpRegions
from lb.kserve.merge.settings import GrpcLogSettings, GrpcTraceSettings, HttpSettings
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics
from tests.fakes.merges import AtOnce

NAMES = st.sampled_from(["a", "b", "c"])
STATES = st.sampled_from(["READY", "LOADING", "UNLOADING", "UNAVAILABLE"])
INDEX = st.dictionaries(
    st.tuples(NAMES, st.sampled_from(["1", "2", "10"])), STATES, max_size=6
).map(
    lambda states: [
        {"name": name, "version": version, "state": state}
        for (name, version), state in sorted(states.items())
    ]
)


def merged_index(lists: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    merge = AtOnce(HttpIndex())
    answers = [(str(at), merge.read(write_json(each))) for at, each in enumerate(lists)]
    found: list[dict[str, str]] = json.loads(merge.combine(answers))
    return found


@given(INDEX)
def test_an_index_merged_with_itself_is_itself(entries: list[dict[str, str]]) -> None:
    assert merged_index([entries]) == entries
    assert merged_index([entries, entries]) == entries


@given(st.lists(INDEX, min_size=1, max_size=4))
def test_a_version_is_ready_exactly_when_somebody_has_it_ready(
    lists: list[list[dict[str, str]]],
) -> None:
    def ready(entries: list[dict[str, str]]) -> set[tuple[str, str]]:
        return {(e["name"], e["version"]) for e in entries if e["state"] == "READY"}

    merged = merged_index(lists)
    assert ready(merged) == set().union(*(ready(entries) for entries in lists))
    known = {(e["name"], e["version"]) for entries in lists for e in entries}
    assert sorted((e["name"], e["version"]) for e in merged) == sorted(known)


NAMED = st.sampled_from([
    "model_stats", "name", "version", "state", "extensions", "batch_stats", "batch_size", "count",
    "response_stats", "memory_usage", "byte_size", "type", "id", "trace_count", "last_inference",
])  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | NAMED,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMED, inner, max_size=5),
    max_leaves=20,
)


def any_answer(merge: Any, body: bytes) -> Any:
    """An answer that can be read, as a view takes it."""
    try:
        return merge.read(body, 1.0)
    except ValueError:
        return None


@given(st.lists(ANY_JSON, min_size=1, max_size=3), st.booleans())
def test_whatever_can_be_read_can_be_merged(contents: list[Any], is_wrapped: bool) -> None:
    memory = StatisticsMemory()
    wrapped = [{"model_stats": [each]} if is_wrapped else each for each in contents]
    bodies = [json.dumps(each).encode() for each in wrapped]
    kinds: list[Any] = [
        HttpIndex(), HttpMetadata(), HttpRegions(), HttpSettings(), HttpStatistics(memory)
    ]  # fmt: skip
    merges = [AtOnce(kind) for kind in kinds]
    for merge in merges:
        read = [any_answer(merge, body) for body in bodies]
        answers = [(str(at), answer) for at, answer in enumerate(read) if answer is not None]
        try:
            if answers:
                json.loads(merge.combine(answers))
        except Unreadable:
            assert isinstance(merge.merge, HttpStatistics)
        except Disagreement:
            assert isinstance(merge.merge, HttpSettings)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_whatever_can_be_parsed_can_be_merged(messages: list[bytes]) -> None:
    memory = StatisticsMemory()
    kinds: list[Any] = [
        GrpcIndex(), GrpcMetadata(), GrpcSystemRegions(), GrpcCudaRegions(), GrpcTraceSettings(),
        GrpcLogSettings(), GrpcStatistics(memory),
    ]  # fmt: skip
    merges = [AtOnce(kind) for kind in kinds]
    for merge in merges:
        read = [any_answer(merge, each) for each in messages]
        answers = [(str(at), answer) for at, answer in enumerate(read) if answer is not None]
        try:
            if answers:
                merge.read(merge.combine(answers))
        except Disagreement:
            assert isinstance(merge.merge, GrpcTraceSettings | GrpcLogSettings)


class Server:
    """A Triton as far as its statistics go."""

    def __init__(self) -> None:
        self.models: dict[str, dict[int, int]] = {}
        self.ran = dict.fromkeys("abc", 0)
        """Inferences ever run here, whatever is left of their count."""

    def infer(self, model: str, batch: int) -> None:
        batches = self.models.setdefault(model, {})
        batches[batch] = batches.get(batch, 0) + 1
        self.ran[model] += batch

    def restart(self) -> None:
        self.models = {model: {} for model in self.models}

    def unload(self, model: str) -> None:
        self.models.pop(model, None)

    def statistics(self) -> dict[str, Any]:
        return {"model_stats": [self._entry(*item) for item in sorted(self.models.items())]}

    def _entry(self, name: str, batches: dict[int, int]) -> dict[str, Any]:
        total = sum(batch * count for batch, count in batches.items())
        return {
            "name": name,
            "version": "1",
            "last_inference": 5 * total,
            "inference_count": total,
            "execution_count": sum(batches.values()),
            "inference_stats": {"success": {"count": total, "ns": 7 * total}},
            "response_stats": {},
            "batch_stats": [
                {"batch_size": batch, "compute_infer": {"count": count, "ns": 3 * count}}
                for batch, count in sorted(batches.items())
            ],
            "memory_usage": [],
        }


def as_message(statistics: dict[str, Any]) -> bytes:
    message = pb.ModelStatisticsResponse()
    for entry in statistics["model_stats"]:
        added = message.model_stats.add(
            name=entry["name"],
            version=entry["version"],
            last_inference=entry["last_inference"],
            inference_count=entry["inference_count"],
            execution_count=entry["execution_count"],
        )
        success = entry["inference_stats"]["success"]
        added.inference_stats.success.count = success["count"]
        added.inference_stats.success.ns = success["ns"]
        for row in entry["batch_stats"]:
            infer = pb.StatisticDuration(**row["compute_infer"])
            added.batch_stats.add(batch_size=row["batch_size"], compute_infer=infer)
    return message.SerializeToString()


class Balancer:
    """Asks servers for statistics, over either protocol."""

    def __init__(self) -> None:
        self.memory = StatisticsMemory()
        self.now = 0.0
        self.before: dict[tuple[str, str], int] = {}

    def ask(self, servers: dict[str, Server], *, over_grpc: bool) -> dict[str, dict[str, int]]:
        """What clients see, by model: plain numbers."""
        self.now += 1.0
        if not servers:
            return {}
        merge = AtOnce((GrpcStatistics if over_grpc else HttpStatistics)(self.memory))
        answers = []
        for name, server in servers.items():
            said = server.statistics()
            body = as_message(said) if over_grpc else write_json(said)
            answers.append((name, merge.read(body, self.now)))
        whole = merge.combine(answers)
        if over_grpc:
            return {
                each.name: {
                    "inferences": each.inference_count,
                    "executions": each.execution_count,
                    "last": each.last_inference,
                    "ns": each.inference_stats.success.ns,
                    **{f"batch-{row.batch_size}": row.compute_infer.ns for row in each.batch_stats},
                }
                for each in pb.ModelStatisticsResponse.FromString(whole).model_stats
            }
        return {
            each["name"]: {
                "inferences": each["inference_count"],
                "executions": each["execution_count"],
                "last": each["last_inference"],
                "ns": each["inference_stats"]["success"]["ns"],
                **{
                    f"batch-{r['batch_size']}": r["compute_infer"]["ns"]
                    for r in each["batch_stats"]
                },
            }
            for each in json.loads(whole)["model_stats"]
        }


SERVERS = st.sampled_from("xyz")
EVENTS = st.one_of(
    st.tuples(st.just("infer"), SERVERS, NAMES, st.sampled_from([1, 2, 8])),
    st.tuples(st.just("restart"), SERVERS),
    st.tuples(st.just("unload"), SERVERS, NAMES),
    st.tuples(st.just("leave"), SERVERS),
    st.tuples(st.just("come"), SERVERS),
    st.tuples(st.just("ask"), st.booleans()),
)


def happen(event: tuple[Any, ...], servers: dict[str, Server], present: dict[str, Server]) -> None:
    server = servers[event[1]]
    match event[0]:
        case "infer":
            server.infer(event[2], event[3])
        case "restart":
            server.restart()
        case "unload":
            server.unload(event[2])
        case "leave":
            present.pop(event[1], None)
        case "come":
            present[event[1]] = server


@given(st.lists(EVENTS, max_size=60))
def test_statistics_never_fall(events: list[tuple[Any, ...]]) -> None:
    servers = {name: Server() for name in "xyz"}
    present = dict(servers)
    balancer = Balancer()
    seen: dict[tuple[str, str], int] = {}
    for event in events:
        if event[0] != "ask":
            happen(event, servers, present)
            continue
        for model, numbers in balancer.ask(present, over_grpc=event[1]).items():
            for what, number in numbers.items():
                assert number >= seen.get((model, what), 0)
                seen[model, what] = number
            assert numbers["inferences"] <= sum(each.ran[model] for each in servers.values())


@given(st.lists(EVENTS, max_size=60), st.booleans())
def test_statistics_that_are_read_before_each_restart_lose_nothing(
    events: list[tuple[Any, ...]], over_grpc: bool
) -> None:
    servers = {name: Server() for name in "xyz"}
    balancer = Balancer()
    for event in events:
        if event[0] in ("restart", "unload", "infer"):
            if event[0] != "infer":
                balancer.ask(servers, over_grpc=over_grpc)
            happen(event, servers, {})
            if event[0] != "infer":
                balancer.ask(servers, over_grpc=over_grpc)
    for model, numbers in balancer.ask(servers, over_grpc=over_grpc).items():
        ran = sum(server.ran[model] for server in servers.values())
        # A model that was unloaded and loaded again may be seen only once it counts on.
        assert numbers["inferences"] <= ran
        if not any(event[0] == "unload" for event in events):
            assert numbers["inferences"] == ran


@given(st.lists(EVENTS, max_size=30))
def test_the_statistics_of_one_server_are_its_own(events: list[tuple[Any, ...]]) -> None:
    server = Server()
    for event in events:
        if event[0] == "infer":
            server.infer(event[2], event[3])
    merge = AtOnce(HttpStatistics(StatisticsMemory()))
    body = write_json(server.statistics())
    assert merge.combine([("x", merge.read(body, 1.0))]) == body
