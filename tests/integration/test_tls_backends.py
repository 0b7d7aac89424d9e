"""TLS toward backends: who is trusted, what is said when not, and ends that are none."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

import grpc
import pytest

from lb.domain.backend import Address, AppProtocol, BackendSpec, BackendTls, parse_address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.net.dial import dial
from lb.net.tls.client import ClientTls, ClientTlsBook
from lb.net.tls.watch import FileWatch
from lb.probes.plan import ProbeChoice, ProbeKind, plan_probe
from lb.probes.probe import NetworkProbe, ProbeResult
from lb.runtime.security import Security
from tests.fakes.certificates import Authority, Pair, expired
from tests.fakes.grpc_server import grpc_channel, grpc_server, path
from tests.fakes.relay import running_http1_relay, running_relay
from tests.fakes.tls import World
from tests.wire.http1 import GET, Peer, raw_client, reply, scripted_backend

BOTH_LOOPS = True


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def failure(address: Address, tls: ClientTls, handshake_s: float = 5.0) -> str:
    """Why a backend cannot be dialled."""
    loop = asyncio.get_running_loop()
    with pytest.raises(UpstreamError) as caught:
        await dial(loop, address, asyncio.Protocol, 2.0, tls=tls, handshake_s=handshake_s)
    assert caught.value.outcome is Outcome.CONNECT_FAILED
    return caught.value.detail


def server_context(world: World, pair: Pair, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.write(world.folder, name))
    return context


async def test_http_is_relayed_over_verified_connections(world: World) -> None:
    async with (
        scripted_backend(tls=world.server_context()) as backend,
        running_http1_relay(backend.target, tls=BackendTls(ca=world.ca)) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(3):
            await client.send(GET)
            assert (await client.answer()).status == 200
        body = bytes(5 << 20)
        await client.send(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        assert (await client.answer()).status == 200
        assert backend.requests[-1].body == body
        assert backend.connections == 1


async def test_grpc_is_relayed_over_verified_connections(world: World) -> None:
    pair = world.authority.issue("localhost")
    credentials = grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], world.authority.pem, require_client_auth=True
    )
    own, own_key = world.client_pair("balancer")
    tls = BackendTls(ca=world.ca, server_name="localhost", certificate=own, key=own_key)
    async with (
        grpc_server(credentials) as (_, target),
        running_relay(target, tls=tls) as relay,
        grpc_channel(relay.target) as channel,
    ):
        assert await channel.unary_unary(path("ModelInfer"))(b"hello") == b"hello"
        assert len(await channel.unary_unary(path("Blob"))(b"3000000")) == 3_000_000


async def test_what_cannot_be_verified_is_not_spoken_to(world: World) -> None:
    authority = world.authority
    cases = {
        "certificate verify failed: certificate has expired": authority.issue(
            "127.0.0.1", not_after=expired()
        ),
        "certificate verify failed: unable to get local issuer certificate": Authority(
            "Another CA"
        ).issue("127.0.0.1"),
        "certificate verify failed: IP address mismatch": authority.issue("10.0.0.1"),
    }
    for number, (text, pair) in enumerate(cases.items()):
        async with scripted_backend(tls=server_context(world, pair, f"bad{number}")) as backend:
            address = parse_address(backend.target)
            detail = await failure(address, ClientTls(BackendTls(ca=world.ca), AppProtocol.HTTP))
            assert detail.startswith(f"TLS with {address} failed: {text}")
            assert backend.requests == []


async def test_the_name_may_be_another_than_the_address(world: World) -> None:
    pair = world.authority.issue("triton.internal")
    async with scripted_backend(tls=server_context(world, pair, "named")) as backend:
        address = parse_address(backend.target)
        tls = ClientTls(BackendTls(ca=world.ca, server_name="triton.internal"), AppProtocol.HTTP)
        loop = asyncio.get_running_loop()
        transport, _ = await dial(loop, address, asyncio.Protocol, 2.0, tls=tls)
        assert transport.get_extra_info("cipher")
        transport.abort()
        wrong = BackendTls(ca=world.ca, server_name="other.internal")
        detail = await failure(address, ClientTls(wrong, AppProtocol.HTTP))
        assert "Hostname mismatch" in detail


async def test_a_plain_backend_a_silent_one_and_one_without_h2_are_told_apart(
    world: World,
) -> None:
    settings = BackendTls(ca=world.ca)

    async def greet(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def listen(peer: Peer) -> None:
        await peer.closed()

    async with scripted_backend(greet) as plain:
        detail = await failure(parse_address(plain.target), ClientTls(settings, AppProtocol.HTTP))
        assert detail.endswith("failed: wrong version number")
    async with scripted_backend(listen) as silent:
        detail = await failure(
            parse_address(silent.target), ClientTls(settings, AppProtocol.HTTP), 0.05
        )
        assert detail.endswith("failed: no handshake within 0.05s")
    pair = world.authority.issue("127.0.0.1")
    async with scripted_backend(tls=server_context(world, pair, "old")) as old:
        detail = await failure(parse_address(old.target), ClientTls(settings, AppProtocol.GRPC))
        assert detail.endswith("failed: the backend does not offer h2")


async def test_a_request_whose_backend_cannot_be_verified_goes_to_another(world: World) -> None:
    stranger = Authority("Another CA").issue("127.0.0.1")
    async with (
        scripted_backend(tls=server_context(world, stranger, "stranger")) as bad,
        scripted_backend(tls=world.server_context()) as good,
        running_http1_relay(bad.target, good.target, tls=BackendTls(ca=world.ca)) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(GET)
        assert (await client.answer()).status == 200
        assert relay.outcomes.seen == [("b0", Outcome.CONNECT_FAILED)]
        assert (len(bad.requests), len(good.requests)) == (0, 1)


async def resumes(target: str, tls: ClientTls) -> bool:
    """Make a request over a connection, and say whether that resumed a session."""
    loop = asyncio.get_running_loop()

    class ClientCall(asyncio.Protocol):
        def __init__(self) -> None:
            self.heard = loop.create_future()
            self.gone = loop.create_future()

        def connection_lost(self, exc: Exception | None) -> None:
            self.gone.set_result(None)

        def data_received(self, data: bytes) -> None:
            if not self.heard.done():
                self.heard.set_result(data)

    transport, client_call = await dial(loop, parse_address(target), ClientCall, 2.0, tls=tls)
    is_reused = bool(transport.get_extra_info("ssl_object").session_reused)
    transport.write(GET)
    await client_call.heard
    transport.close()
    await client_call.gone
    return is_reused


async def test_sessions_are_resumed_with_the_same_backend_only(world: World) -> None:
    tls = ClientTls(BackendTls(ca=world.ca), AppProtocol.HTTP)
    async with (
        scripted_backend(tls=world.server_context()) as one,
        scripted_backend(tls=world.server_context()) as two,
    ):
        reused = [await resumes(backend.target, tls) for backend in (one, one, two)]
    assert reused == [False, True, False]


async def test_sessions_are_kept_as_long_as_their_backend_is_there(world: World) -> None:
    settings = BackendTls(ca=world.ca)
    security = Security({}, ClientTlsBook(), FileWatch())
    async with (
        scripted_backend(tls=world.server_context()) as one,
        scripted_backend(tls=world.server_context()) as two,
    ):
        specs = [
            BackendSpec(name=each.target, http=parse_address(each.target), tls=settings)
            for each in (one, two)
        ]
        security.follow(specs)
        tls = security.clients.load(settings, AppProtocol.HTTP)
        reused = [await resumes(each.target, tls) for each in (one, two)]
        security.follow(specs[1:])
        security.follow(specs)
        reused += [await resumes(each.target, tls) for each in (one, two)]
    assert reused == [False, False, False, True]


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_a_body_without_length_needs_a_goodbye(world: World, says_goodbye: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it?")
        if says_goodbye:
            peer.writer.close()
        else:
            # Cut below TLS: FIN without a close_notify.
            plain = socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno()))
            plain.shutdown(socket.SHUT_WR)
            plain.close()
            await peer.closed()

    async with (
        scripted_backend(script, tls=world.server_context()) as backend,
        running_http1_relay(backend.target, tls=BackendTls(ca=world.ca)) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(GET)
        answer = await client.answer()
        assert answer.body == b"all of it?"
        assert answer.complete is says_goodbye


@pytest.mark.parametrize("kind", [ProbeKind.HTTP, ProbeKind.TCP])
async def test_probes_speak_tls(world: World, kind: ProbeKind) -> None:
    async def probe(tls: BackendTls) -> ProbeResult:
        spec = BackendSpec(name="b", http=parse_address(backend.target), tls=tls)
        plan = plan_probe(spec, AppProtocol.HTTP, ProbeChoice(kind=kind))
        return await NetworkProbe(plan).check(2.0)

    async with scripted_backend(tls=world.server_context()) as backend:
        assert (await probe(BackendTls(ca=world.ca))).finding is Finding.READY
        stranger = Authority("x").write(world.folder, "stranger-ca")
        result = await probe(BackendTls(ca=stranger))
        if kind is ProbeKind.TCP:
            assert result.finding is Finding.READY
        else:
            assert result.finding is Finding.ERROR
            assert "certificate verify failed" in result.detail
            missing = await probe(BackendTls(ca="/nowhere"))
            assert missing.detail == "cannot read /nowhere: No such file or directory"


async def test_a_backend_that_wants_a_certificate_from_us_fails_its_probe(world: World) -> None:
    context = world.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 says it after the handshake
    context.load_verify_locations(world.ca)
    async with scripted_backend(tls=context) as backend:
        spec = BackendSpec(
            name="b", http=parse_address(backend.target), tls=BackendTls(ca=world.ca)
        )
        plan = plan_probe(spec, AppProtocol.HTTP, ProbeChoice())
        result = await NetworkProbe(plan).check(2.0)
    assert result.finding is Finding.ERROR
    assert result.detail.startswith("TLS with ")


async def test_early_answers_and_big_uploads_do_not_hang(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(reply(b"too much", status=b"413 Content Too Large"))
        await peer.closed()

    async with (
        scripted_backend(script, tls=world.server_context()) as backend,
        running_http1_relay(backend.target, tls=BackendTls(ca=world.ca)) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"
        )
        await client.send(bytes(100_000))
        assert (await client.answer()).status == 413
