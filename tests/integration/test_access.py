"""Access over real sockets: what is denied never reaches a backend, whatever its spelling."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_network

import grpc
import grpc.aio
import pytest

from lb.access.gate import ControlRule, Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.backend import BackendKind
from lb.domain.client import TrustedProxies
from lb.domain.outcome import Reason
from tests.fakes.grpc_server import grpc_channel, grpc_server, path
from tests.fakes.relay import running_http1_relay, running_relay
from tests.wire.http1 import Peer, raw_client, scripted_backend
from tests.wire.waiting import eventually

SECRET = "0123456789abcdef"
BEARER = f"Authorization: Bearer {SECRET}".encode()
PRIVATE = frozenset({b"authorization"})
NOWHERE = Gate(GateRules(control=ControlRule(loopback=False)))
"""Nobody may change a server: all clients of these tests are on loopback."""
_OPTIONS = {"linger_s": 0.2, "private_fields": PRIVATE}


def book(*roles: Role, name: str = "key") -> TokenBook:
    return TokenBook([Token(name, digest_of(SECRET.encode()), frozenset(roles))])


def request(method: bytes, target: bytes, *fields: bytes, version: bytes = b"1.1") -> bytes:
    lines = (
        b"%b %b HTTP/%b" % (method, target, version),
        b"Host: a",
        b"Content-Length: 2",
        *fields,
    )
    return b"\r\n".join((*lines, b"", b"{}"))


INFER = request(b"POST", b"/v2/models/m/infer")

# Over HTTP, every control route of Triton, in every spelling

_ROUTES = [
    (b"POST", b"/v2/repository/models/m/load"),
    (b"POST", b"/v2/repository/models/m/unload"),
    (b"POST", b"/v2/systemsharedmemory/region/r/register"),
    (b"POST", b"/v2/systemsharedmemory/region/r/unregister"),
    (b"POST", b"/v2/systemsharedmemory/unregister"),
    (b"POST", b"/v2/cudasharedmemory/region/r/register"),
    (b"POST", b"/v2/cudasharedmemory/region/r/unregister"),
    (b"POST", b"/v2/cudasharedmemory/unregister"),
    (b"POST", b"/v2/logging"),
    (b"POST", b"/v2/trace/setting"),
    (b"POST", b"/v2/models/m/trace/setting"),
    (b"POST", b"/v2/models/m/versions/1/trace/setting"),
]


def _spellings(method: bytes, target: bytes) -> list[tuple[str, bytes]]:
    head, _, tail = target[1:].partition(b"/")
    plain = request(method, target)
    return [
        ("plain", plain),
        ("query", request(method, target + b"?x=1")),
        ("absolute form", request(method, b"http://a" + target)),
        ("repository name", request(method, target.replace(b"repository/", b"repository/foo/"))),
        ("percent", request(method, target.replace(b"/v2", b"/%762"))),
        ("percent twice", request(method, target.replace(b"/v2", b"/%25762"))),
        ("encoded slash", request(method, b"/" + head + b"%2F" + tail)),
        ("backslash", request(method, b"/" + head + b"\\" + tail)),
        ("double slash", request(method, b"/" + target)),
        ("inner double slash", request(method, b"/" + head + b"//" + tail)),
        ("dot segment", request(method, b"/v2/./" + tail)),
        ("dot segments", request(method, b"/v2/models/../" + tail)),
        ("encoded dot segments", request(method, b"/v2/models/%2e%2e/" + tail)),
        ("trailing slash", request(method, target + b"/")),
        ("case", request(method, target.upper())),
        ("semicolon", request(method, target + b";a=b")),
        ("inner semicolon", request(method, b"/v2;a=b/" + tail)),
        ("fragment", request(method, target + b"%23")),
        ("method override", request(b"GET", target, b"X-HTTP-Method-Override: POST")),
        ("another override", request(b"HEAD", target, b"X-Method-Override: POST")),
        ("method case", request(b"post", target)),
        ("another method", request(b"PUT", target)),
        ("upgrade", request(method, target, b"Connection: Upgrade", b"Upgrade: h2c")),
        ("HTTP/1.0", request(method, target, version=b"1.0")),
        ("twice", plain + plain),
        ("in chunks", plain.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")[:-2]
         + b"2\r\n{}\r\n0\r\n\r\n"),
        ("continue", request(method, target, b"Expect: 100-continue")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "target"), _ROUTES, ids=[target.decode() for _, target in _ROUTES]
)
async def test_no_spelling_of_control_reaches_a_backend(method: bytes, target: bytes) -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS, gate=NOWHERE) as relay,
    ):
        for name, attack in _spellings(method, target):
            async with raw_client(relay.port) as client:
                # Pipelined behind a request that is allowed, on a connection that is warm.
                await client.send(INFER + attack)
                assert (await client.answer("POST")).status == 200, name
                answer = await client.answer("HEAD" if attack.startswith(b"HEAD") else "POST")
                assert answer.status in (400, 403, 501), name
                if answer.status == 403 and not attack.startswith(b"HEAD"):
                    assert "access.control" in json.loads(answer.body)["error"]
        assert {received.target for received in backend.requests} == {b"/v2/models/m/infer"}
        assert Reason.CONTROL_REFUSED in {record.reason for record in relay.finished.records}
        await eventually(relay.is_clean)


async def test_reading_settings_is_no_control_over_http() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS, gate=NOWHERE) as relay,
        raw_client(relay.port) as client,
    ):
        for target in (b"/v2/logging", b"/v2/trace/setting", b"/v2/repository/index"):
            method = b"POST" if target.endswith(b"index") else b"GET"
            await client.send(request(method, target))
            assert (await client.answer()).status == 200


async def test_control_from_this_machine_passes_and_the_connection_goes_on() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS, gate=Gate()) as relay,
        raw_client(relay.port) as client,
    ):
        for method, target in _ROUTES:
            await client.send(request(method, target))
            assert (await client.answer("POST")).status == 200
        assert len(backend.requests) == len(_ROUTES)


async def test_a_refused_request_leaves_the_connection_usable() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS, gate=NOWHERE) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(request(*_ROUTES[0]))
        assert (await client.answer("POST")).status == 403
        await client.send(INFER)
        assert (await client.answer("POST")).status == 200
        assert len(backend.requests) == 1


# Tokens over HTTP


@pytest.mark.parametrize("kind", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
async def test_a_token_is_needed_checked_and_kept_here(kind: bytes) -> None:
    gate = Gate(GateRules(needs_token=True), book(Role.INFER))
    body = b"2\r\n{}\r\n0\r\n\r\n" if b"chunked" in kind else b"{}"
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + kind + b"\r\n"
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS, gate=gate) as relay,
    ):
        for field, status in (
            (b"", 401),
            (b"Authorization: Bearer wrong\r\n", 401),
            (b"Authorization: Basic " + SECRET.encode() + b"\r\n", 401),
            (BEARER + b"\r\n" + BEARER + b"\r\n", 401),
            (BEARER + b"x\r\n", 401),
            (BEARER + b"\r\n", 200),
            (b"aUTHORIZATION:bearer  " + SECRET.encode() + b"\r\n", 200),
        ):
            for step in (0, 1):
                async with raw_client(relay.port) as client:
                    await client.send(head + field + b"\r\n" + body, step=step)
                    answer = await client.answer("POST")
                    assert answer.status == status, field
        assert len(backend.requests) == 4
        assert not [each for each in backend.requests if SECRET.encode() in each.head]
        tokens = [record.token for record in relay.finished.records if record.status == 200]
        assert tokens == ["key"] * 4
        await eventually(relay.is_clean)


async def test_health_is_open_and_401_says_how_to_come_in() -> None:
    gate = Gate(GateRules(needs_token=True), book(Role.INFER))
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.send(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 401
        assert answer.fields[b"www-authenticate"] == b"Bearer"
        assert backend.requests == []


async def test_a_token_that_is_revoked_is_refused_on_an_open_connection() -> None:
    tokens = book(Role.INFER)
    gate = Gate(GateRules(needs_token=True), tokens)
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        for status in (200, 401):
            await client.send(request(b"POST", b"/v2/models/m/infer", BEARER))
            assert (await client.answer("POST")).status == status
            tokens.replace([])


# Limits over HTTP


async def test_too_many_requests_are_told_when_to_come_again() -> None:
    gate = Gate(GateRules(limits=(LimitRule(Limit(rate=0.01, burst=2)),)))
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(INFER * 4)
        answers = [await client.answer("POST") for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 429, 429]
        assert 90 <= int(answers[2].fields[b"retry-after"]) <= 100
        assert len(backend.requests) == 2
        assert relay.finished.meter.traffic[0].reasons == {Reason.RATE_LIMITED: 2}


@pytest.mark.parametrize("kind", [BackendKind.TRITON, BackendKind.GENERIC])
async def test_an_abandoned_request_counts_until_its_backend_is_done(kind: BackendKind) -> None:
    limit = Limit(concurrent=1)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    go = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        await go.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with (
        scripted_backend(slow) as backend,
        running_http1_relay(backend.target, gate=gate, kind=kind) as relay,
    ):
        async with raw_client(relay.port) as client:
            await client.send(INFER)
            await eventually(lambda: bool(backend.requests))
            async with raw_client(relay.port) as other:
                await other.send(INFER)
                assert (await other.answer("POST")).status == 429
            client.reset()
        await eventually(lambda: len(relay.finished.records) == 2)
        key = bytes((127, 0, 0, 1))
        # A Triton computes on; another server is told by the close of its connection.
        assert limit.open_of(key) == (1 if kind is BackendKind.TRITON else 0)
        go.set()
        await eventually(lambda: limit.open_of(key) == 0)
        await eventually(relay.is_clean)


async def test_clients_behind_a_trusted_proxy_are_told_apart() -> None:
    rules = GateRules(
        limits=(LimitRule(Limit(rate=0.01)),),
        proxies=TrustedProxies((ip_network("127.0.0.0/8"),)),
    )
    options = {"trusted_proxies": rules.proxies}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options, gate=Gate(rules)) as relay,
        raw_client(relay.port) as client,
    ):
        for hops, status in (
            (b"192.0.2.1", 200),
            (b"192.0.2.1", 429),
            (b"192.0.2.2", 200),
            (b"192.0.2.3, 192.0.2.1", 429),
            (b"192.0.2.9", 200),
        ):
            await client.send(request(b"POST", b"/v2/models/m/infer", b"X-Forwarded-For: " + hops))
            assert (await client.answer("POST")).status == status, hops


# gRPC

_SERVICE = "/inference.GRPCInferenceService/"
_CONTROL = [
    "RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings",
]  # fmt: skip


async def failure(
    channel: grpc.aio.Channel, method: str, **options: object
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(method)(b"", **options)
    return caught.value


async def test_no_spelling_of_grpc_control_reaches_a_backend() -> None:
    async with (
        grpc_server() as (service, target),
        running_relay(target, gate=NOWHERE) as relay,
        grpc_channel(relay.target) as channel,
    ):
        for name in _CONTROL:
            for spelling in (
                _SERVICE + name,
                _SERVICE + name + "?x=1",
                _SERVICE + name + "/",
                _SERVICE + name.lower(),
                _SERVICE + "/" + name,
                "/" + _SERVICE + name,
                _SERVICE + f"%{ord(name[0]):02x}" + name[1:],
            ):
                error = await failure(channel, spelling)
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED, spelling
                assert "access.control" in (error.details() or "")
        assert await channel.unary_unary(path("ModelInfer"))(b"x") == b"x"
        assert service.methods == {path("ModelInfer")}
        await relay.until_clean()


async def test_grpc_needs_its_token_in_the_metadata() -> None:
    gate = Gate(GateRules(needs_token=True), book(Role.INFER))
    async with (
        grpc_server() as (service, target),
        running_relay(target, gate=gate, options={"private_fields": PRIVATE}) as relay,
        grpc_channel(relay.target) as channel,
    ):
        infer = path("ModelInfer")
        for value in (None, "Bearer wrong", f"Basic {SECRET}", SECRET):
            metadata = (("authorization", value),) if value else ()
            for _ in range(2):
                error = await failure(channel, infer, metadata=metadata)
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED, value
        good = (("authorization", f"Bearer {SECRET}"), ("x-other", "1"))
        for _ in range(3):
            assert await channel.unary_unary(infer)(b"x", metadata=good) == b"x"
            assert ("x-other", "1") in service.metadata
            assert "authorization" not in dict(service.metadata)
        assert service.calls == 3
        stream = channel.stream_stream(path("ModelStreamInfer"))(metadata=())
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        for live in (_SERVICE + "ServerLive", "/grpc.health.v1.Health/Check"):
            await channel.unary_unary(live)(b"")
        await channel.close()
        await relay.until_clean()


async def test_grpc_limits_count_streams_while_they_are_open() -> None:
    limit = Limit(concurrent=2)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    async with (
        grpc_server() as (_, target),
        running_relay(target, gate=gate) as relay,
        grpc_channel(relay.target) as channel,
    ):
        streams = [channel.stream_stream(path("ModelStreamInfer"))() for _ in range(2)]
        for stream in streams:
            await stream.write(b"x")
            assert await stream.read() == b"x"
        error = await failure(channel, path("ModelInfer"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        streams[0].cancel()
        await eventually(lambda: len(relay.finished.records) == 2)
        assert await channel.unary_unary(path("ModelInfer"))(b"x") == b"x"
        await channel.close()
        await relay.until_clean()
        assert limit.open_of(bytes((127, 0, 0, 1))) == 0
