"""One answer for several real Tritons: views and control calls, compared with one Triton's own."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import CallOutcome, call_unary
from tests.triton.raw_http import RawAnswer, ask_once, message
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import Target

EXPLICIT = ("--model-control-mode=explicit", "--load-model=simple")
INFER = json.dumps({
    "inputs": [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
        for name in ("INPUT0", "INPUT1")
    ]
}).encode()  # fmt: skip

Pair = tuple[RealTriton, RealTriton]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Tritons of these tests live."""
    return tmp_path_factory.mktemp("fan-out")


@pytest.fixture(scope="module")
def pair(workspace: Path, records: Records) -> Iterator[Pair]:
    """Two Tritons under explicit model control."""
    one, two = (RealTriton(f"t{at}", workspace, records.directory, *EXPLICIT) for at in range(2))
    try:
        one.wait_ready()
        two.wait_ready()
        yield one, two
    finally:
        one.close()
        two.close()


@pytest.fixture(scope="module")
def both(workspace: Path, pair: Pair) -> Iterator[Target]:
    """The balancer before both."""
    for running in RunningBalancer.run(_new(workspace, "both"), pair):
        yield running.target


@pytest.fixture(scope="module")
def crossed(workspace: Path, pair: Pair) -> Iterator[Target]:
    """A balancer that reaches one over HTTP alone and the other over gRPC alone."""
    backends = [
        {"name": "http-only", "http": pair[0].target.http},
        {"name": "grpc-only", "grpc": pair[1].target.grpc},
    ]
    settings: dict[str, Any] = {"backends": backends}
    for running in RunningBalancer.run(_new(workspace, "crossed"), pair, **settings):
        yield running.target


def _new(workspace: Path, name: str) -> Path:
    directory = workspace / name
    directory.mkdir()
    return directory


def ask(target: Target, method: str, path: str, body: bytes | None = None) -> RawAnswer:
    return ask_once(target.http, message(method, path, body))


def post(target: Target, path: str, content: object = None) -> RawAnswer:
    return ask(target, "POST", path, b"" if content is None else json.dumps(content).encode())


def call(target: Target, name: str, request: bytes = b"") -> CallOutcome:
    return call_unary(target.grpc, name, request)


def state_of(target: Target, model: str) -> str:
    index = json.loads(post(target, "/v2/repository/index").body)
    return next((each.get("state", "") for each in index if each["name"] == model), "")


def wait_until_unloaded(target: Target, model: str) -> None:
    """A model that is not in the repository is not listed any more."""
    wait_until(
        lambda: state_of(target, model) in ("UNAVAILABLE", ""),
        timeout_s=30.0,
        what=f"{model} is unloaded",
    )


def inferences(target: Target) -> int:
    (entry,) = json.loads(ask(target, "GET", "/v2/models/simple/stats").body)["model_stats"]
    count = entry["inference_count"]
    assert entry["inference_stats"]["success"]["count"] == count
    assert sum(row["compute_infer"]["count"] for row in entry["batch_stats"]) == count
    assert isinstance(count, int)
    return count


VIEWS = [
    ("GET", "/v2", None),
    ("POST", "/v2/repository/index", b""),
    ("POST", "/v2/repository/index", b'{"ready":true}'),
    ("GET", "/v2/trace/setting", None),
    ("GET", "/v2/models/simple/trace/setting", None),
    ("GET", "/v2/models/nosuch/trace/setting", None),
    ("GET", "/v2/logging", None),
    ("GET", "/v2/models/nosuch/stats", None),
    ("GET", "/v2/systemsharedmemory/status", None),
    ("GET", "/v2/systemsharedmemory/region/nosuch/status", None),
    ("GET", "/v2/cudasharedmemory/status", None),
]


@pytest.mark.parametrize(("method", "path", "body"), VIEWS)
def test_views_over_http_are_one_tritons_bytes(
    pair: Pair, both: Target, method: str, path: str, body: bytes | None
) -> None:
    expected = ask(pair[0].target, method, path, body)
    found = ask(both, method, path, body)
    assert (found.status, found.body) == (expected.status, expected.body)
    assert found.field(b"content-type") == expected.field(b"content-type")


GRPC_VIEWS: list[tuple[str, Any, type[Any]]] = [
    ("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse),
    ("RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse),
    ("ModelStatistics", pb.ModelStatisticsRequest(name="nosuch"), pb.ModelStatisticsResponse),
    ("TraceSetting", pb.TraceSettingRequest(model_name="simple"), pb.TraceSettingResponse),
    ("LogSettings", pb.LogSettingsRequest(), pb.LogSettingsResponse),
    (
        "SystemSharedMemoryStatus",
        pb.SystemSharedMemoryStatusRequest(name="nosuch"),
        pb.SystemSharedMemoryStatusResponse,
    ),
    (
        "CudaSharedMemoryStatus",
        pb.CudaSharedMemoryStatusRequest(),
        pb.CudaSharedMemoryStatusResponse,
    ),
]


@pytest.mark.parametrize(("name", "request_message", "kind"), GRPC_VIEWS)
def test_views_over_grpc_say_what_one_triton_says(
    pair: Pair, both: Target, name: str, request_message: Any, kind: type[Any]
) -> None:
    data = request_message.SerializeToString()
    expected, found = call(pair[0].target, name, data), call(both, name, data)
    assert (found.code, found.details) == (expected.code, expected.details)
    assert [kind.FromString(each) for each in found.messages] == [
        kind.FromString(each) for each in expected.messages
    ]


def test_a_model_is_loaded_and_unloaded_everywhere(pair: Pair, both: Target) -> None:
    loaded = post(both, "/v2/repository/models/simple_int8/load")
    assert (loaded.status, loaded.body) == (200, b"")
    targets = (pair[0].target, pair[1].target, both)
    assert [state_of(target, "simple_int8") for target in targets] == ["READY"] * 3
    assert post(both, "/v2/repository/models/simple_int8/unload").status == 200
    for target in targets:
        wait_until_unloaded(target, "simple_int8")


def test_a_load_with_a_configuration_and_large_files_reaches_all(pair: Pair, both: Target) -> None:
    source = (Path(__file__).parent / "models" / "simple_identity").resolve()
    content = (source / "1" / "model.py").read_bytes() + b"\n#" + b"x" * (8 << 20)
    config = {
        "name": "sent",
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "INPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [-1]}],
    }
    parameters = {
        "config": json.dumps(config),
        "file:1/model.py": base64.b64encode(content).decode(),
    }
    assert post(both, "/v2/repository/models/sent/load", {"parameters": parameters}).status == 200
    for triton in pair:
        found = json.loads(ask(triton.target, "GET", "/v2/models/sent/config").body)
        assert found["max_batch_size"] == 8
    assert post(both, "/v2/repository/models/sent/unload").status == 200
    for triton in pair:
        wait_until_unloaded(triton.target, "sent")


def test_what_no_triton_can_load_is_one_tritons_error(pair: Pair, both: Target) -> None:
    expected = post(pair[0].target, "/v2/repository/models/nosuch/load")
    found = post(both, "/v2/repository/models/nosuch/load")
    assert (found.status, found.body) == (expected.status, expected.body)
    request = pb.RepositoryModelLoadRequest(model_name="nosuch").SerializeToString()
    alone, merged = (
        call(target, "RepositoryModelLoad", request) for target in (pair[0].target, both)
    )
    assert (merged.code, merged.details) == (alone.code, alone.details)


def test_a_load_that_fails_on_one_names_it(pair: Pair, both: Target, workspace: Path) -> None:
    shutil.rmtree(workspace / pair[1].name / "models" / "batched")
    found = post(both, "/v2/repository/models/batched/load")
    assert found.status == 500
    assert json.loads(found.body)["error"] == (
        "RepositoryModelLoad failed on 1 of 2 backends:"
        " t1: failed to load 'batched', failed to poll from model repository"
    )
    assert post(both, "/v2/repository/models/batched/unload").status == 200


def test_shared_memory_is_registered_everywhere(pair: Pair, both: Target) -> None:
    memory = shared_memory.SharedMemory("lbtest_fan_out", create=True, size=64)
    try:
        region = {"key": "/lbtest_fan_out", "offset": 0, "byte_size": 64}
        assert post(both, "/v2/systemsharedmemory/region/r/register", region).status == 200
        views = [
            ask(target, "GET", "/v2/systemsharedmemory/status").body
            for target in (pair[0].target, pair[1].target, both)
        ]
        assert views == [b'[{"name":"r","key":"/lbtest_fan_out","offset":0,"byte_size":64}]'] * 3
        again = post(both, "/v2/systemsharedmemory/region/r/register", region)
        assert again.status == 400
        assert json.loads(again.body) == {"error": "shared memory region 'r' already in manager"}
    finally:
        assert post(both, "/v2/systemsharedmemory/unregister").status == 200
        memory.close()
        memory.unlink()
    assert ask(pair[1].target, "GET", "/v2/systemsharedmemory/status").body == b"[]"


def test_settings_are_changed_everywhere_and_a_difference_is_shown(
    pair: Pair, both: Target
) -> None:
    assert post(both, "/v2/logging", {"log_verbose_level": 1}).status == 200
    for target in (pair[0].target, pair[1].target, both):
        assert json.loads(ask(target, "GET", "/v2/logging").body)["log_verbose_level"] == 1
    assert post(pair[0].target, "/v2/logging", {"log_verbose_level": 0}).status == 200
    found = ask(both, "GET", "/v2/logging")
    assert found.status == 409
    assert json.loads(found.body)["error"] == (
        "settings differ between backends: log_verbose_level is 0 on t0 and 1 on t1"
    )
    answer = post(both, "/v2/logging", {"log_verbose_level": 0})
    assert (answer.status, answer.body) == (200, ask(pair[1].target, "GET", "/v2/logging").body)


def test_calls_reach_backends_that_have_only_the_other_protocol(
    pair: Pair, crossed: Target
) -> None:
    request = pb.RepositoryModelLoadRequest(model_name="simple_int8").SerializeToString()
    assert post(crossed, "/v2/repository/models/simple_string/load").status == 200
    assert call(crossed, "RepositoryModelLoad", request).code is grpc.StatusCode.OK
    for model in ("simple_string", "simple_int8"):
        assert [state_of(triton.target, model) for triton in pair] == ["READY", "READY"]
        assert post(crossed, f"/v2/repository/models/{model}/unload").status == 200
    trace = post(crossed, "/v2/models/simple/trace/setting", {"trace_rate": "77"})
    assert json.loads(trace.body)["trace_rate"] == "77"
    for triton in pair:
        found = json.loads(ask(triton.target, "GET", "/v2/models/simple/trace/setting").body)
        assert found["trace_rate"] == "77"
    assert post(crossed, "/v2/models/simple/trace/setting", {"trace_rate": None}).status == 200
    for triton in pair:
        found = json.loads(ask(triton.target, "GET", "/v2/models/simple/trace/setting").body)
        assert found["trace_rate"] == "1000"


def test_statistics_are_summed_and_do_not_fall_when_a_triton_dies(pair: Pair, both: Target) -> None:
    """The last test here: it restarts a Triton."""

    def counted() -> int:
        return sum(inferences(triton.target) for triton in pair)

    known = counted()
    for triton in pair:
        for _ in range(3):
            assert ask(triton.target, "POST", "/v2/models/simple/infer", INFER).status == 200
    # A Triton counts an inference after it has answered.
    wait_until(lambda: counted() >= known + 6, what="the inferences are counted")
    before = inferences(both)
    assert before == counted() >= 6
    request = pb.ModelStatisticsRequest(name="simple").SerializeToString()
    (data,) = call(both, "ModelStatistics", request).messages
    assert pb.ModelStatisticsResponse.FromString(data).model_stats[0].inference_count == before
    pair[1].kill9()
    wait_until(lambda: not pair[1].is_running, what="the Triton is gone")
    assert inferences(both) == before
    pair[1].restart()
    pair[1].wait_ready()
    assert ask(pair[1].target, "POST", "/v2/models/simple/infer", INFER).status == 200
    wait_until(
        lambda: inferences(both) == before + 1, timeout_s=30.0, what="the restarted one is counted"
    )
