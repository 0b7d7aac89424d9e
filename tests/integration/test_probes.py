"""Probes against real servers: aiohttp, grpcio and sockets that misbehave, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from lb.domain.backend import Address
from lb.health.port import Finding
from lb.probes.plan import ProbePlan, ProbeQuestion
from lb.probes.probe import NetworkProbe, ProbeResult

Run = Callable[[Coroutine[Any, Any, ProbeResult]], ProbeResult]
LOOPBACK = Address(host="127.0.0.1")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs one scenario on the event loop in question."""
    return uvloop.run if request.param == "uvloop" else asyncio.run


async def ask(question: ProbeQuestion, address: Address, timeout_s: float = 5.0) -> ProbeResult:
    headers = (("authorization", "Bearer x"),)
    plan = ProbePlan(question=question, address=address, headers=headers)
    return await NetworkProbe(plan).check(timeout_s)


# HTTP


@asynccontextmanager
async def http_server(address: Address, status: int) -> AsyncIterator[Address]:
    async def ready(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer x"
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/v2/health/ready", ready)
    runner = web.AppRunner(app)
    await runner.setup()
    site: web.BaseSite
    if address.path:
        site = web.UnixSite(runner, address.path)
    else:
        listener = socket.create_server(
            (address.host, 0), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET
        )
        site = web.SockSite(runner, listener)
        address = Address(host=address.host, port=listener.getsockname()[1])
    await site.start()
    yield address
    await runner.cleanup()


async def ask_http(address: Address, status: int) -> ProbeResult:
    async with http_server(address, status) as actual:
        return await ask(ProbeQuestion.HTTP_GET, actual)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_ready_http_server_is_found_ready(run: Run, host: str) -> None:
    result = run(ask_http(Address(host=host), 200))
    assert result.finding is Finding.READY
    assert 0 < result.latency_s < 30


def test_a_ready_http_server_on_a_unix_socket_is_found_ready(run: Run, tmp_path: Path) -> None:
    result = run(ask_http(Address(path=str(tmp_path / "http.sock")), 200))
    assert result.finding is Finding.READY


def test_a_server_that_says_400_is_found_not_ready(run: Run) -> None:
    result = run(ask_http(LOOPBACK, 400))
    assert result.finding is Finding.MODELS_NOT_READY
    assert result.detail == "HTTP status 400"


def test_a_host_name_is_resolved(run: Run) -> None:
    async def scenario() -> ProbeResult:
        async with http_server(LOOPBACK, 200) as actual:
            return await ask(ProbeQuestion.HTTP_GET, Address(host="localhost", port=actual.port))

    assert run(scenario()).finding is Finding.READY


# gRPC


SERVICE = "inference.GRPCInferenceService"


def server_ready(request: bytes, context: grpc.ServicerContext, *, ready: bool) -> bytes:
    """`ServerReady` of a Triton."""
    assert request == b""
    assert ("authorization", "Bearer x") in context.invocation_metadata()
    return b"\x08\x01" if ready else b""


@contextmanager
def grpc_server(target: str, *, ready: bool) -> Iterator[int]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        method = grpc.unary_unary_rpc_method_handler(partial(server_ready, ready=ready))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"ServerReady": method}),)
        )
        servicer = health.HealthServicer()
        states = health_pb2.HealthCheckResponse
        servicer.set("", states.SERVING if ready else states.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port(target)
        server.start()
        yield port
        server.stop(0).wait()


GRPC_QUESTIONS = pytest.mark.parametrize(
    "question", [ProbeQuestion.SERVER_READY, ProbeQuestion.GRPC_HEALTH]
)


@GRPC_QUESTIONS
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_ready_grpc_server_is_found_ready(run: Run, question: ProbeQuestion, host: str) -> None:
    with grpc_server(str(Address(host=host)), ready=True) as port:
        result = run(ask(question, Address(host=host, port=port)))
    assert result.finding is Finding.READY


@GRPC_QUESTIONS
def test_a_grpc_server_that_says_no_is_found_not_ready(run: Run, question: ProbeQuestion) -> None:
    with grpc_server("127.0.0.1:0", ready=False) as port:
        result = run(ask(question, Address(host="127.0.0.1", port=port)))
    assert result.finding is Finding.MODELS_NOT_READY
    assert result.detail == "it says that it is not ready"


def test_a_ready_grpc_server_on_a_unix_socket_is_found_ready(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "grpc.sock")
    with grpc_server(f"unix:{path}", ready=True):
        result = run(ask(ProbeQuestion.SERVER_READY, Address(path=path)))
    assert result.finding is Finding.READY


def test_a_grpc_probe_of_an_http_port_is_an_error(run: Run) -> None:
    async def scenario() -> ProbeResult:
        async with raw_server(lambda writer: writer.write(b"HTTP/1.1 400 No\r\n\r\n")) as address:
            return await ask(ProbeQuestion.SERVER_READY, address)

    result = run(scenario())
    assert result.finding is Finding.ERROR
    assert result.detail == "the answer is not HTTP/2"


# Ports that misbehave

QUESTIONS = pytest.mark.parametrize(
    "question", [ProbeQuestion.HTTP_GET, ProbeQuestion.SERVER_READY]
)


@asynccontextmanager
async def raw_server(greet: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[Address]:
    """Greets every connection, then keeps it until the client closes."""

    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await reader.read(1)
            greet(writer)
            await reader.read()
        except ConnectionError:
            pass
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    server.close()
    await server.wait_closed()
    await asyncio.gather(*serving)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the peer gets a reset, as a Triton that shuts down does."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def say_nothing(writer: asyncio.StreamWriter) -> None:
    pass


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


async def ask_raw(
    question: ProbeQuestion, greet: Callable[[asyncio.StreamWriter], None], timeout_s: float
) -> ProbeResult:
    async with raw_server(greet) as address:
        return await ask(question, address, timeout_s)


@QUESTIONS
def test_a_closed_port_is_found_refused(run: Run, question: ProbeQuestion) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(host="127.0.0.1", port=listener.getsockname()[1])
    assert run(ask(question, address)).finding is Finding.REFUSED


@QUESTIONS
def test_a_reset_before_any_answer_is_found_refused(run: Run, question: ProbeQuestion) -> None:
    result = run(ask_raw(question, reset, 5.0))
    assert result.finding is Finding.REFUSED
    assert result.detail == "connection reset"


@QUESTIONS
def test_a_port_that_hangs_up_is_an_error(run: Run, question: ProbeQuestion) -> None:
    result = run(ask_raw(question, hang_up, 5.0))
    assert result.finding is Finding.ERROR
    assert result.detail == "connection closed without an answer"


@QUESTIONS
def test_a_port_that_says_nothing_times_out(run: Run, question: ProbeQuestion) -> None:
    result = run(ask_raw(question, say_nothing, 0.05))
    assert result.finding is Finding.TIMEOUT
    assert result.detail == "no answer within 0.05s"
    assert 0.04 < result.latency_s < 20.0


def test_connecting_is_all_that_a_tcp_probe_needs(run: Run) -> None:
    result = run(ask_raw(ProbeQuestion.CONNECT, say_nothing, 5.0))
    assert result.finding is Finding.READY


def test_a_name_that_does_not_resolve_is_an_error(run: Run) -> None:
    result = run(ask(ProbeQuestion.HTTP_GET, Address(host="no..such..host", port=80)))
    assert result.finding is Finding.ERROR
    assert "cannot resolve" in result.detail
