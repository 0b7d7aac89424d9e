"""Putting a question to one backend, whatever happens."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from time import monotonic

import pytest

from lb.domain.backend import AppProtocol, Backend, BackendSpec, parse_address
from lb.domain.control import Reach
from lb.kserve import inference_pb2 as pb
from lb.kserve.conversion import to_message
from lb.net.ask.backend_client import BackendClient
from lb.net.ask.client_call import Fields
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer
from lb.proxy.fan_out import calls
from lb.proxy.fan_out.calls import Calls
from lb.proxy.fan_out.question import FanOutRequest
from lb.proxy.fan_out.result import Result
from tests.fakes.grpc_server import grpc_server
from tests.unit.proxy.fan_out.stage import backend_at, grpc_question, http_question, serving
from tests.wire.http1 import scripted_backend

_FILES = [f"file:{number}" for number in range(30_000)]
LOAD = http_question(b"POST", b"/v2/repository/models/m/load", b'{"parameters":{"config":"{}"}}')


async def put(question: FanOutRequest, backend: Backend, timeout_s: float = 30.0) -> Result:
    reach = Reach(backend, (backend.spec.http is not None, backend.spec.grpc is not None))
    return await Calls(BackendClient(), monotonic).put(question, reach, timeout_s, lambda _: True)


async def test_a_request_goes_out_as_it_came() -> None:
    async with scripted_backend(serving(b"{}")) as backend:
        result = await put(LOAD, backend_at("a", backend.target))
        (request,) = backend.requests
    assert (result.status, result.body) == (200, b"{}")
    assert result.content_type == b"application/json"
    assert 0 < result.asked_at <= result.answered_at
    assert request.target == LOAD.target
    assert request.body == LOAD.body
    assert request.field(b"x-client") == b"1"
    assert request.field(b"accept-encoding") is None


async def test_what_opens_a_backend_to_us_does_not_open_it_to_clients() -> None:
    key = (("x-key", "secret"),)
    async with scripted_backend(serving(b"{}")) as backend:
        spec = BackendSpec(name="a", http=parse_address(backend.target), headers=key)
        await put(LOAD, Backend(spec))
        (request,) = backend.requests
    assert request.field(b"x-key") is None
    async with grpc_server() as (service, target):
        spec = BackendSpec(name="a", grpc=parse_address(target), headers=key)
        await put(grpc_question("ModelInfer", b""), Backend(spec))
    assert "x-key" not in dict(service.metadata)


async def test_a_backend_without_grpc_is_asked_over_http() -> None:
    message = pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    async with scripted_backend(serving(b"")) as backend:
        result = await put(
            grpc_question("RepositoryModelLoad", message), backend_at("a", backend.target)
        )
        (request,) = backend.requests
    assert result.is_ok
    assert request.head.startswith(b"POST /v2/repository/models/m/load HTTP/1.1\r\n")
    assert request.field(b"authorization") == b"Bearer c"
    assert request.field(b"x-client") is None


async def test_a_backend_without_http_is_asked_over_grpc() -> None:
    async with grpc_server() as (service, target):
        backend = Backend(BackendSpec(name="a", grpc=parse_address(target)))
        result = await put(LOAD, backend)
    assert result.protocol is AppProtocol.GRPC
    assert result.status == 12  # this server has no such call
    assert service.methods == {"/inference.GRPCInferenceService/RepositoryModelLoad"}


class RestrictedTriton(BackendClient):
    """Has a key for each protocol; notes who comes with ours."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    async def http(  # type: ignore[override]  # the rest is of no use here
        self,
        spec: BackendSpec,
        method: bytes,
        target: bytes,
        fields: Fields,
        *_: object,
        **__: object,
    ) -> HttpAnswer:
        assert spec.headers == ()
        self.asked.append(target)
        return HttpAnswer(200 if (b"key", b"of the client") in fields else 403, (), b"")

    async def grpc(  # type: ignore[override]
        self, spec: BackendSpec, path: bytes, *_: object, **__: object
    ) -> GrpcAnswer:
        assert spec.headers == ()
        self.asked.append(path)
        text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
        return GrpcAnswer(14, text, b"")


@pytest.mark.parametrize(("key", "status"), [(b"of the client", 200), (b"of somebody", 403)])
async def test_a_load_needs_the_key_of_its_own_protocol(key: bytes, status: int) -> None:
    triton = RestrictedTriton()
    address = parse_address("127.0.0.1:1")
    spec = BackendSpec(name="a", http=address, grpc=address, headers=(("key", "ours"),))
    reach = Reach(Backend(spec), (True, True))
    question = replace(LOAD, fields=((b"key", key),))
    result = await Calls(triton, monotonic).put(question, reach, 5.0, lambda _: True)
    assert result.status == status
    assert triton.asked[-1] == LOAD.target


async def test_what_cannot_be_said_in_its_protocol_is_an_error_of_that_backend() -> None:
    message = pb.RepositoryModelLoadRequest(model_name="a b").SerializeToString()
    result = await put(
        grpc_question("RepositoryModelLoad", message), backend_at("a", "127.0.0.1:1")
    )
    assert (result.status, result.detail) == (400, "the name cannot stand in a path")
    only_grpc = Backend(BackendSpec(name="a", grpc=parse_address("127.0.0.1:1")))
    compressed = http_question(b"POST", b"/v2/logging", b"?")
    compressed = replace(compressed, fields=((b"content-encoding", b"gzip"),))
    result = await put(compressed, only_grpc)
    assert result.status == 3
    assert "compressed" in result.detail


# Loads, which would stop other connections of an HTTP server


def with_both(http: str, grpc: str) -> Backend:
    return Backend(BackendSpec(name="a", http=parse_address(http), grpc=parse_address(grpc)))


async def test_a_load_over_http_goes_over_grpc() -> None:
    async with scripted_backend(serving(b"[]")) as backend, grpc_server() as (service, target):
        result = await put(LOAD, with_both(backend.target, target))
        (index,) = backend.requests
    assert result.protocol is AppProtocol.GRPC
    assert service.methods == {"/inference.GRPCInferenceService/RepositoryModelLoad"}
    assert index.target == b"/v2/repository/index"
    assert index.field(b"x-client") == b"1"


async def test_a_load_is_put_into_the_other_protocol_once_for_all_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counted(operation: str, target: bytes, body: bytes) -> bytes:
        made.append(operation)
        return to_message(operation, target, body)

    monkeypatch.setattr(calls, "to_message", counted)
    body = b'{"parameters":{"config":"{}","file:1/model.py":"AAAA"}}'
    load = http_question(b"POST", LOAD.target, body)
    async with scripted_backend(serving(b"[]")) as backend, grpc_server() as (service, target):
        await asyncio.gather(*(put(load, with_both(backend.target, target)) for _ in range(3)))
    assert service.methods == {"/inference.GRPCInferenceService/RepositoryModelLoad"}
    assert made == ["RepositoryModelLoad"]
    assert replace(load, body=b"{}").conversion.message is None


async def test_other_calls_stay_in_their_protocol() -> None:
    unload = http_question(b"POST", b"/v2/repository/models/m/unload")
    async with scripted_backend(serving(b"")) as backend, grpc_server() as (service, target):
        await put(unload, with_both(backend.target, target))
        (request,) = backend.requests
    assert request.target == unload.target
    assert service.methods == set()


async def test_a_load_that_http_would_refuse_is_refused() -> None:
    refused = (403, b'{"error":"This API is restricted"}')
    async with scripted_backend(serving(refused)) as backend, grpc_server() as (service, target):
        result = await put(LOAD, with_both(backend.target, target))
        targets = [request.target for request in backend.requests]
    assert targets == [b"/v2/repository/index", LOAD.target]
    assert service.methods == set()
    assert (result.status, result.detail) == (403, "This API is restricted")


async def test_a_load_that_grpc_alone_would_refuse_goes_over_http() -> None:
    class Restricted(BackendClient):
        async def grpc(self, *_: object, **__: object) -> GrpcAnswer:
            return GrpcAnswer(14, "This protocol is restricted, expecting header 'x'", b"")

    async with scripted_backend(serving(b"[]", b"")) as backend:
        reach = Reach(with_both(backend.target, "127.0.0.1:1"), (True, True))
        result = await Calls(Restricted(), monotonic).put(LOAD, reach, 5.0, lambda _: True)
        targets = [request.target for request in backend.requests]
    assert targets == [b"/v2/repository/index", LOAD.target]
    assert result.protocol is AppProtocol.HTTP
    assert result.is_ok


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"models/m", b"no JSON"),
        (b"models/m", b'{"parameters":{"unknown":1}}'),
        (b"models/m", b'{"parameters":[]}'),
        (b"models/m", b'{"parameters":{"file:1/model.py":5}}'),
        (b"here/models/m", b"{}"),
        (b"models/m", json.dumps({"parameters": dict.fromkeys(_FILES, "")}).encode()),
    ],
    ids=["no JSON", "unknown", "no object", "no text", "repository", "very many files"],
)
async def test_a_load_that_grpc_would_read_otherwise_goes_over_http(
    path: bytes, body: bytes
) -> None:
    load = http_question(b"POST", b"/v2/repository/%b/load" % path, body)
    refused = (400, b'{"error":"failed to parse the request JSON buffer"}')
    async with (
        scripted_backend(serving(b"[]", refused)) as backend,
        grpc_server() as (service, target),
    ):
        result = await put(load, with_both(backend.target, target))
    assert service.methods == set()
    assert (result.status, result.body) == refused
