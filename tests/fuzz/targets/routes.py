"""Which operation a request is."""

from __future__ import annotations

from lb.domain.operation import ModelIn, Operation
from lb.kserve.operations import GRPC_OPERATIONS, UNKNOWN, grpc_operation, http_route
from tests.fuzz.target import Target

_ACTIONS = {"ModelInfer": b"/infer", "ModelGenerate": b"/generate", "ModelReady": b"/ready"}


def _asked(method: bytes, target: bytes) -> tuple[Operation, bytes, str]:
    route = http_route(method, target)
    return route.operation, route.model, route.fault


def _check(data: bytes) -> None:
    method, _, target = data.partition(b" ")
    operation, model, fault = asked = _asked(method, target)
    assert isinstance(operation, Operation)
    path = target.partition(b"?")[0]
    assert model in path
    assert b"/" not in model
    assert len(fault) < 100
    if operation is not UNKNOWN and path != b"*":
        # Neither a query nor another spelling of the path changes what a request is.
        assert path.startswith(b"/v2")
        assert _asked(method, path + b"?x=1") == asked
        assert _asked(method, path + b"/")[0] in (UNKNOWN, operation)
        assert _asked(method, path.replace(b"/v2", b"/V2", 1))[0] is UNKNOWN
    if operation.model_in is ModelIn.PATH:
        assert model
    ending = _ACTIONS.get(operation.name)
    assert ending is None or path.endswith(ending)
    assert grpc_operation(target) is GRPC_OPERATIONS.get(target, UNKNOWN)


_PATHS = (
    "GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/m",
    "GET /v2/models/stats", "POST /v2/models/m/infer", "POST /v2/models/m/versions/12/infer?x=1",
    "POST /v2/models/m/generate", "POST /v2/models/m/generate_stream", "GET /v2/models/m/ready",
    "GET /v2/models/m/config", "GET /v2/models/m/versions/1/stats",
    "POST /v2/models/m/trace/setting", "POST /v2/repository/index",
    "POST /v2/repository/any/index", "POST /v2/repository/models/m/load",
    "POST /v2/repository/r/models/m/unload", "GET /v2/systemsharedmemory/status",
    "POST /v2/systemsharedmemory/region/r/register", "POST /v2/cudasharedmemory/unregister",
    "GET /v2/logging", "POST /v2/trace/setting", "GET http://a/v2/repository/index",
    "POST /inference.GRPCInferenceService/ModelInfer", "POST /grpc.health.v1.Health/Check",
)  # fmt: skip
_WORDS = (
    b"?", b"/", b"//", b"%2f", b"%72", b";x", b"..", b"\n", b"/versions/1", b"/models/",
    b"/index", b"/infer", b"/load", b"v2", b"\xd9\xa5", b"http://a", b"repository", b"#", b"\0",
)  # fmt: skip

TARGETS = (Target("kserve_routes", _check, tuple(p.encode() for p in _PATHS), _WORDS),)
