from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lb.control.questions import READ_BYTES, NotOffered, Questions, Reply, entries
from lb.control.record import BackendRecord, Member
from lb.domain.backend import Address, AppProtocol, BackendSpec
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelEntry, ModelState
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.kserve import inference_pb2 as pb
from lb.kserve.repository import Region
from lb.net.ask.backend_client import BackendClient
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer
from tests.fakes.backends import GRPC_ADDRESS, HTTP_ADDRESS, make_spec

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
SERVICE = b"/inference.GRPCInferenceService/"
REGION = Region("r", "/key", 0, 64)


@dataclass
class Scripted(BackendClient):
    """Gives one answer to everything, and keeps what was asked."""

    http_answer: HttpAnswer = field(default_factory=lambda: HttpAnswer(200, (), b""))
    grpc_answer: GrpcAnswer = field(default_factory=lambda: GrpcAnswer(0, "", b""))
    http_error: UpstreamError | None = None
    asked: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    """Method, path and body; of gRPC without a method."""
    timeouts: list[float] = field(default_factory=list)

    async def http(  # type: ignore[override]
        self,
        spec: BackendSpec,
        method: bytes,
        target: bytes,
        fields: object = (),
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> HttpAnswer:
        self.asked.append((method, target, body))
        self.timeouts.append(timeout_s)
        if self.http_error is not None:
            raise self.http_error
        return self.http_answer

    async def grpc(  # type: ignore[override]
        self, spec: BackendSpec, path: bytes, message: bytes = b"", *, timeout_s: float
    ) -> GrpcAnswer:
        self.asked.append((b"", path, message))
        self.timeouts.append(timeout_s)
        return self.grpc_answer


def record(
    http: Address | None = HTTP_ADDRESS, grpc: Address | None = GRPC_ADDRESS
) -> BackendRecord:
    """A backend of which every port answers."""
    made = BackendRecord(Member(make_spec(http=http, grpc=grpc)), 100.0)
    for port in made.ports:
        port.health.probed(Finding.READY, 0.0)
    return made


async def test_http_is_asked_first() -> None:
    body = b'[{"name": "m", "version": "1", "state": "READY"}]'
    backend_client = Scripted(http_answer=HttpAnswer(200, (), body))
    reply = await Questions(backend_client).index(record())
    assert tuple(entries(reply)) == (ModelEntry(b"m", b"1", ModelState.READY),)
    assert backend_client.asked == [(b"POST", b"/v2/repository/index", b"")]


async def test_grpc_is_asked_where_http_does_not_answer() -> None:
    index = pb.RepositoryIndexResponse()
    index.models.add(name="m", version="1", state="READY")
    backend_client = Scripted(grpc_answer=GrpcAnswer(0, "", index.SerializeToString()))
    closed = record()
    closed.ports[0].health.refused()
    for backend in (record(http=None), closed):
        reply = await Questions(backend_client).index(backend)
        assert tuple(entries(reply)) == (ModelEntry(b"m", b"1", ModelState.READY),)
    assert backend_client.asked == [(b"", SERVICE + b"RepositoryIndex", b"")] * 2


async def test_a_backend_that_answers_nowhere_is_not_asked() -> None:
    closed = record(grpc=None)
    closed.ports[0].health.refused()
    backend_client = Scripted()
    with pytest.raises(UpstreamError, match="no port"):
        await Questions(backend_client).index(closed)
    assert backend_client.asked == []


async def test_names_that_no_path_can_hold_are_asked_for_over_grpc() -> None:
    answer = pb.ModelConfigResponse(config=pb.ModelConfig(name="a b"))
    backend_client = Scripted(
        http_answer=HttpAnswer(200, (), b"{}"),
        grpc_answer=GrpcAnswer(0, "", answer.SerializeToString()),
    )
    questions = Questions(backend_client)
    for version in ((b"a b", b"2"), (b"plain", b"2"), (b"plain", b"")):
        assert (await questions.config(record(), version)).facts.is_stateful is False
    request = pb.ModelConfigRequest(name="a b", version="2").SerializeToString()
    assert backend_client.asked == [
        (b"", SERVICE + b"ModelConfig", request),
        (b"GET", b"/v2/models/plain/versions/2/config", b""),
        (b"GET", b"/v2/models/plain/config", b""),
    ]


def test_answers_without_end_are_not_read() -> None:
    body = b"[" + b" " * READ_BYTES + b"]"
    with pytest.raises(ValueError, match="too long"):
        entries(Reply(HTTP, 200, body, ""))


async def test_what_is_beside_models_is_asked_for() -> None:
    backend_client = Scripted(http_answer=HttpAnswer(200, (), b"[]"))
    questions, backend = Questions(backend_client), record()
    assert await questions.regions(backend) == ()
    assert await questions.cuda_regions(backend) == ()
    backend_client.http_answer = HttpAnswer(200, (), b'{"log_info": true, "trace_rate": "1"}')
    assert (await questions.trace_settings(backend))["trace_rate"] == "1"
    assert (await questions.log_settings(backend))["log_info"] is True
    assert [path for _, path, _ in backend_client.asked] == [
        b"/v2/systemsharedmemory/status",
        b"/v2/cudasharedmemory/status",
        b"/v2/trace/setting",
        b"/v2/logging",
    ]


async def test_what_it_is_to_have_is_said_in_both_protocols() -> None:
    backend_client = Scripted()
    questions = Questions(backend_client)
    for backend in (record(grpc=None), record(http=None)):
        assert (await questions.load(backend, b"m", 600.0)).is_ok
        assert (await questions.register(backend, REGION)).is_ok
        assert (await questions.set_trace(backend, {"trace_rate": "5"})).is_ok
        assert (await questions.set_log(backend, {"log_info": False})).is_ok
    register = pb.SystemSharedMemoryRegisterRequest(name="r", key="/key", byte_size=64)
    content = b'{"key": "/key", "offset": 0, "byte_size": 64}'
    assert backend_client.asked[:4] == [
        (b"POST", b"/v2/repository/models/m/load", b"{}"),
        (b"POST", b"/v2/systemsharedmemory/region/r/register", content),
        (b"POST", b"/v2/trace/setting", b'{"trace_rate": "5"}'),
        (b"POST", b"/v2/logging", b'{"log_info": false}'),
    ]
    assert backend_client.asked[5] == (
        b"",
        SERVICE + b"SystemSharedMemoryRegister",
        register.SerializeToString(),
    )
    assert [path.removeprefix(SERVICE) for _, path, _ in backend_client.asked[4:]] == [
        b"RepositoryModelLoad",
        b"SystemSharedMemoryRegister",
        b"TraceSetting",
        b"LogSettings",
    ]
    assert backend_client.timeouts == [600.0, 2.0, 2.0, 2.0] * 2


async def test_loads_go_over_grpc_where_they_can() -> None:
    backend_client = Scripted()
    await Questions(backend_client).load(record(), b"m", 600.0)
    assert [path for _, path, _ in backend_client.asked] == [SERVICE + b"RepositoryModelLoad"]


async def test_a_model_that_no_path_can_hold_is_not_loaded_over_http() -> None:
    backend_client = Scripted()
    with pytest.raises(UpstreamError):
        await Questions(backend_client).load(record(grpc=None), b"a b", 600.0)
    assert backend_client.asked == []


async def test_grpc_is_asked_when_http_stands_still() -> None:
    backend_client = Scripted(http_error=UpstreamError(Outcome.DEADLINE, "no answer"))
    reply = await Questions(backend_client).index(record())
    assert reply.protocol is GRPC
    with pytest.raises(UpstreamError, match="no answer"):
        await Questions(backend_client).index(record(grpc=None))


@pytest.mark.parametrize(
    ("protocol", "status", "text"),
    [
        (HTTP, 404, "Not Found"),
        (HTTP, 403, "This API is restricted, expecting header 'x'"),
        (HTTP, 501, ""),
        (GRPC, 12, ""),
        (GRPC, 14, "This protocol is restricted, expecting header 'x'"),
    ],
)
def test_some_refusals_are_for_good(protocol: AppProtocol, status: int, text: str) -> None:
    with pytest.raises(NotOffered, match=text or "status"):
        Reply(protocol, status, b"", text).checked()


@pytest.mark.parametrize(
    ("protocol", "status", "text"),
    [(HTTP, 503, "Server not ready"), (GRPC, 14, "Server exiting"), (GRPC, 8, ""), (HTTP, 500, "")],
)
def test_others_may_pass(protocol: AppProtocol, status: int, text: str) -> None:
    with pytest.raises(UpstreamError):
        Reply(protocol, status, b"", text).checked()


async def test_errors_come_in_the_words_of_the_backend() -> None:
    backend_client = Scripted(
        http_answer=HttpAnswer(503, (), b'{"error": "not now"}'),
        grpc_answer=GrpcAnswer(14, "not there", b""),
    )
    questions = Questions(backend_client)
    assert (await questions.load(record(grpc=None), b"m", 1.0)).detail == "not now"
    assert (await questions.load(record(http=None), b"m", 1.0)).detail == "not there"


# Configurations


async def test_a_load_takes_a_configuration_in_both_protocols() -> None:
    backend_client = Scripted()
    for backend in (record(grpc=None), record(http=None)):
        await Questions(backend_client).load(backend, b"m", 600.0, '{"name": "m"}')
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = '{"name": "m"}'
    assert backend_client.asked == [
        (
            b"POST",
            b"/v2/repository/models/m/load",
            b'{"parameters": {"config": "{\\"name\\": \\"m\\"}"}}',
        ),
        (b"", SERVICE + b"RepositoryModelLoad", request.SerializeToString()),
    ]


async def test_a_configuration_is_read_whole_and_over_http_only() -> None:
    backend_client = Scripted(http_answer=HttpAnswer(200, (), b'{"name": "m"}'))
    questions = Questions(backend_client)
    assert (await questions.configuration(record(), (b"m", b"1"))).text == '{"name": "m"}'
    assert backend_client.asked == [(b"GET", b"/v2/models/m/versions/1/config", b"")]
    for backend, version in ((record(http=None), (b"m", b"1")), (record(), (b"a b", b"1"))):
        with pytest.raises(NotOffered):
            await questions.configuration(backend, version)
    backend_client.http_answer = HttpAnswer(200, (), b" " * (READ_BYTES + 1))
    with pytest.raises(ValueError, match="too long"):
        await questions.configuration(record(), (b"m", b"1"))
