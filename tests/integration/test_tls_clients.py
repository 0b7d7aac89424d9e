"""TLS with clients: versions, ciphers, ALPN, names, client certificates, sessions, time."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lb.net.iteration import ROOM
from lb.net.tls.accept import AcceptedTls
from lb.net.tls.server import ClientCertificates
from lb.net.tls.watch import FileWatch
from tests.fakes.certificates import CLIENT, SERVER, Authority, expired
from tests.fakes.grpc_server import CHANNEL_OPTIONS, grpc_server, path
from tests.fakes.relay import running_http1_relay, running_relay
from tests.fakes.tls import Listening, World, poll, shake, tls_listener
from tests.fakes.tls_records import logging_context, trickle, writer_of
from tests.wire.http1 import Peer, reply, scripted_backend
from tests.wire.waiting import eventually, soon

BOTH_LOOPS = True

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def listening(world: World) -> AsyncIterator[Listening]:
    """HTTP/1.1 on a listener with certificates for two domains."""
    more = world.pair("more", "exact.example", "*.wild.example")
    async with (
        running_http1_relay() as relay,
        tls_listener(world.options(more), {"http/1.1": relay.accept}) as running,
    ):
        yield running


def limited(world: World, version: ssl.TLSVersion, ciphers: str = "") -> ssl.SSLContext:
    """A client that speaks one version."""
    context = world.client_context()
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")
    if ciphers:
        context.set_ciphers(ciphers)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
    return context


# Versions and ciphers


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_are_refused(
    world: World, listening: Listening, version: ssl.TLSVersion
) -> None:
    with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL"):
        await asyncio.to_thread(shake, listening.port, limited(world, version))
    await eventually(lambda: len(listening.failures) == 1)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    "ciphers", ["AES128-SHA", "ECDHE-ECDSA-AES128-SHA256", "AES128-GCM-SHA256"]
)
async def test_ciphers_without_forward_secrecy_or_authentication_are_refused(
    world: World, listening: Listening, ciphers: str
) -> None:
    context = limited(world, ssl.TLSVersion.TLSv1_2, ciphers)
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        await asyncio.to_thread(shake, listening.port, context)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_both_good_versions_serve(world: World, listening: Listening) -> None:
    old = await asyncio.to_thread(shake, listening.port, limited(world, ssl.TLSVersion.TLSv1_2))
    new = await asyncio.to_thread(shake, listening.port, world.client_context())
    assert (old.version, new.version) == ("TLSv1.2", "TLSv1.3")
    assert old.cipher.startswith("ECDHE-")
    assert old.answer.startswith(b"HTTP/1.1 200 ")
    assert new.answer == old.answer


# ALPN


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ((), None),
        (("http/1.1",), "http/1.1"),
        (("h2", "http/1.1"), "http/1.1"),
        (("spdy/3", "http/1.1"), "http/1.1"),
    ],
)
async def test_http_port_agrees_on_http1(
    world: World, listening: Listening, offered: tuple[str, ...], chosen: str | None
) -> None:
    seen = await asyncio.to_thread(shake, listening.port, world.client_context(*offered))
    assert seen.protocol == chosen
    assert seen.answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("offered", [("h2",), ("spdy/3", "foo")])
async def test_protocols_that_are_not_spoken_are_refused(
    world: World, listening: Listening, offered: tuple[str, ...]
) -> None:
    with pytest.raises(ssl.SSLError, match="no application protocol"):
        await asyncio.to_thread(shake, listening.port, world.client_context(*offered))
    await eventually(lambda: len(listening.failures) == 1)


async def test_grpc_works_over_tls_and_refuses_http1(world: World) -> None:
    async with (
        grpc_server() as (service, target),
        running_relay(target, options={"x_forwarded": True, "forwarded": True}) as relay,
        tls_listener(world.options(), {"h2": relay.accept}) as listening,
        secure_channel(world, listening) as channel,
    ):
        assert await channel.unary_unary(path("ModelInfer"))(b"hello") == b"hello"
        blob = await channel.unary_unary(path("Blob"))(b"5000000")
        assert len(blob) == 5_000_000
        big = b"u" * 3_000_000
        call = channel.stream_unary(path("Collect"))(iter([big, big]))
        assert await call == big + big
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            await asyncio.to_thread(shake, listening.port, world.client_context("http/1.1"))
    fields = dict(service.metadata)
    assert fields["x-forwarded-proto"] == "https"
    assert fields["forwarded"] == "for=127.0.0.1;proto=https"


def secure_channel(
    world: World, listening: Listening, pair: tuple[str, str] | None = None
) -> grpc.aio.Channel:
    """A channel over TLS, with a client certificate or without."""
    parts = [Path(file).read_bytes() for file in reversed(pair)] if pair else [None, None]
    return grpc.aio.secure_channel(
        f"localhost:{listening.port}",
        grpc.ssl_channel_credentials(world.authority.pem, *parts),
        options=CHANNEL_OPTIONS,
    )


# Names


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("exact.example", "exact.example"),
        ("EXACT.example", "exact.example"),
        ("a.wild.example", "exact.example"),
        ("localhost", "localhost"),
        ("127.0.0.1", "localhost"),  # clients name no host then
        ("wild.example", "localhost"),
        ("a.b.wild.example", "localhost"),
        ("other.example", "localhost"),
    ],
)
async def test_certificate_goes_by_name_and_the_first_is_the_default(
    world: World, listening: Listening, name: str, shown: str
) -> None:
    context = world.client_context()
    context.check_hostname = False
    seen = await asyncio.to_thread(shake, listening.port, context, name)
    assert seen.names[0] == shown


# Sessions


def only(world: World, version: ssl.TLSVersion, **options: Any) -> ssl.SSLContext:
    context = world.client_context(**options)
    context.minimum_version = context.maximum_version = version
    context.check_hostname = False
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("tickets", [True, False])
async def test_sessions_are_resumed_under_their_certificate_only(
    world: World, listening: Listening, version: ssl.TLSVersion, tickets: bool
) -> None:
    context = only(world, version)
    if not tickets:
        context.options |= ssl.OP_NO_TICKET
    first = await asyncio.to_thread(shake, listening.port, context, "localhost")
    again, elsewhere = [
        await asyncio.to_thread(shake, listening.port, context, name, session=first.session)
        for name in ("localhost", "exact.example")
    ]
    assert (first.reused, again.reused, elsewhere.reused) == (False, True, False)
    assert elsewhere.answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_of_a_lax_listener_opens_no_strict_one(
    world: World, version: ssl.TLSVersion
) -> None:
    async with running_http1_relay() as relay:
        serves = {"http/1.1": relay.accept}
        strict = world.options(clients=ClientCertificates.REQUIRED)
        async with (
            tls_listener(world.options(), serves) as lax,
            tls_listener(strict, serves) as other,
        ):
            context = only(world, version)
            first = await asyncio.to_thread(shake, lax.port, context)
            with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"):
                await asyncio.to_thread(shake, other.port, context, session=first.session)


async def test_a_session_does_not_outlive_a_change_of_the_authorities(world: World) -> None:
    pair = world.client_pair()
    options = world.options(clients=ClientCertificates.REQUIRED)
    async with (
        running_http1_relay() as relay,
        tls_listener(options, {"http/1.1": relay.accept}) as listening,
    ):
        context = world.client_context(pair=pair)
        first = await asyncio.to_thread(shake, listening.port, context)
        Authority("Another CA").write(world.folder)
        listening.tls.load()()
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            await asyncio.to_thread(shake, listening.port, context, session=first.session)


# Client certificates


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("mode", [ClientCertificates.REQUIRED, ClientCertificates.OPTIONAL])
async def test_client_certificates_are_accepted_and_refused(
    world: World, mode: ClientCertificates, version: ssl.TLSVersion
) -> None:
    folder, authority = world.folder, world.authority
    bad = {
        "expired": authority.issue(usage=CLIENT, not_after=expired()),
        "wrong-use": authority.issue(usage=SERVER),
        "stranger": Authority("Another CA").issue(usage=CLIENT),
    }
    async with (
        running_http1_relay() as relay,
        tls_listener(world.options(clients=mode), {"http/1.1": relay.accept}) as listening,
    ):
        good = only(world, version, pair=world.client_pair())
        seen = await asyncio.to_thread(shake, listening.port, good)
        assert seen.answer.startswith(b"HTTP/1.1 200 ")
        for name, pair in bad.items():
            context = only(world, version, pair=pair.write(folder, name))
            with pytest.raises(ssl.SSLError, match=r"CERTIFICATE|UNKNOWN_CA|UNKNOWN CA"):
                await asyncio.to_thread(shake, listening.port, context)
        nobody = only(world, version)
        if mode is ClientCertificates.OPTIONAL:
            seen = await asyncio.to_thread(shake, listening.port, nobody)
            assert seen.answer.startswith(b"HTTP/1.1 200 ")
        else:
            with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"):
                await asyncio.to_thread(shake, listening.port, nobody)
        refused = len(bad) + (mode is ClientCertificates.REQUIRED)
        await eventually(lambda: len(listening.failures) == refused)


_FORGED = (
    b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\nX-Client-Subject: CN=boss\r\n"
    b"x_client-subject: CN=boss\r\nConnection: close, x-client-subject\r\nX-Other: 1\r\n\r\n"
)


async def test_backends_hear_the_true_subject_over_http(world: World) -> None:
    options = {
        "private_fields": frozenset({b"x-client-subject"}),
        "x_forwarded": True,
        "forwarded": True,
    }
    server = world.options(clients=ClientCertificates.OPTIONAL, subject_header="X-Client-Subject")
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options) as relay,
        tls_listener(server, {"http/1.1": relay.accept}) as listening,
    ):
        known = world.client_context(pair=world.client_pair('a, "b"\r\nü'))
        for context in (known, world.client_context()):
            await asyncio.to_thread(shake, listening.port, context, send=_FORGED)
        _, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(_FORGED)
        await eventually(lambda: len(backend.requests) == 3)
        writer.close()
    heads = [received.head.lower() for received in backend.requests]
    subject = rb"x-client-subject: cn=a\, \"b\"\0d\0a\c3\bc,o=example" + b"\r\n"
    assert [head.count(b"client") for head in heads] == [1, 0, 0]
    assert subject in heads[0]
    assert all(b"x-other: 1\r\n" in head for head in heads)
    assert [b"x-forwarded-proto: https" in head for head in heads] == [True, True, False]
    assert [b";proto=https" in head for head in heads] == [True, True, False]


async def test_backends_hear_the_true_subject_over_grpc(world: World) -> None:
    options = {"private_fields": frozenset({b"x-client-subject"})}
    server = world.options(clients=ClientCertificates.OPTIONAL, subject_header="X-Client-Subject")
    forged = (("x-client-subject", "CN=boss"), ("x_client_subject", "CN=boss"), ("x-other", "1"))
    heard = []
    async with (
        grpc_server() as (service, target),
        running_relay(target, options=options) as relay,
        tls_listener(server, {"h2": relay.accept}) as listening,
    ):
        for pair in (world.client_pair(), None):
            async with secure_channel(world, listening, pair) as channel:
                for _ in range(3):  # by the dynamic table at first, then by the cache
                    await channel.unary_unary(path("ModelInfer"))(b"", metadata=forged)
                    heard.append([value for key, value in service.metadata if "client" in key])
                    assert ("x-other", "1") in service.metadata
    assert heard == [["CN=client,O=Example"]] * 3 + [[]] * 3


# Time and bad bytes


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
async def test_a_handshake_that_stands_still_is_closed(world: World, sent: bytes) -> None:
    async with (
        running_http1_relay() as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}, handshake_s=0.1) as listening,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(sent)
        try:
            assert await soon(reader.read()) == b""
        except ConnectionResetError:
            pass
        writer.close()
        assert (len(listening.failures), len(listening.acceptor.shaking)) == (1, 0)


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", b"\0" * 99],
)
async def test_what_is_no_hello_is_closed_at_once(listening: Listening, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(sent)
    answer = await soon(reader.read())
    assert answer == (b"\x15\x03\x03\x00\x02\x02\x32" if sent[0] == 0x16 else b"")
    writer.close()
    await eventually(lambda: len(listening.failures) == 1)


async def test_a_client_that_only_connects_is_no_failure(listening: Listening) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    await eventually(lambda: len(listening.acceptor.shaking) == 1)
    writer.close()
    await eventually(lambda: not listening.acceptor.shaking)
    assert listening.failures == []


async def test_a_hello_may_come_byte_by_byte(world: World, listening: Listening) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = world.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def exchange() -> None:
        data = outgoing.read()
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await asyncio.sleep(0)
        incoming.write(await soon(reader.read(65536)))  # type: ignore[arg-type]

    while client.version() is None or client.getpeercert(binary_form=True) is None:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            await exchange()
    client.write(_LIVE)
    answer = b""
    while not answer:
        await exchange()
        try:
            answer = client.read(65536)
        except ssl.SSLWantReadError:
            continue
    assert answer.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_renegotiation_is_refused(world: World, listening: Listening) -> None:
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{listening.port}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(b"R\n"), 30)
    assert b"no renegotiation" in output
    assert b"Compression: NONE" in output


# Ends


async def test_a_client_may_close_its_half_where_that_is_set(
    world: World,
) -> None:
    release = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await release.wait()
        await peer.send(reply(b"late"))

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options={"aborts_on_half_close": False}) as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = world.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\n\r\n")
        try:
            client.unwrap()
        except ssl.SSLError:
            pass
        writer.write(outgoing.read())
        await eventually(lambda: bool(backend.requests))
        await eventually(lambda: [each.has_ended for each in relay.clients] == [True])
        release.set()
        rest = await soon(reader.read())
        writer.close()
    assert isinstance(rest, bytes)
    assert len(rest) > len(reply(b"late"))


async def test_a_slow_reader_holds_the_backend_back(world: World) -> None:
    size = 32 << 20
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            await peer.send(bytes(1 << 16))
            sent += 1 << 16

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target) as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listening.port, ssl=world.client_context(), server_hostname="localhost"
        )
        writer.write(b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: [each.is_paused for each in relay.clients] == [True])
        assert relay.clients[0].transport.get_write_buffer_size() < 1 << 20
        assert sent < size
        head = await reader.readuntil(b"\r\n\r\n")
        body = await asyncio.wait_for(reader.readexactly(size), 20)
        assert head.startswith(b"HTTP/1.1 200")
        assert len(body) == size
        writer.close()


async def test_an_answer_that_breaks_off_is_seen_to_break_off(world: World) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await peer.reset()

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target) as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        request = b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\n\r\n"
        seen = await asyncio.to_thread(shake, listening.port, world.client_context(), send=request)
        assert seen.answer.endswith(b"5\r\nhello\r\n")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.to_thread(
                shake,
                listening.port,
                world.client_context(),
                send=request.replace(b"HTTP/1.1", b"HTTP/1.0"),
            )


async def test_a_refused_upload_hears_the_answer(world: World) -> None:
    options = {"body_size": 1000}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options) as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        body = bytes(3 << 20)
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        seen = await asyncio.to_thread(
            shake, listening.port, world.client_context(), send=head % len(body) + body
        )
        assert seen.answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_connections_leave_no_cycles_behind(world: World, listening: Listening) -> None:
    """The process rarely runs the cyclic collector."""

    def left() -> int:
        return sum(isinstance(each, AcceptedTls) for each in gc.get_objects())

    gc.collect()
    before = left()
    gc.disable()
    try:
        await asyncio.to_thread(shake, listening.port, world.client_context())
        for context in (world.client_context("foo"), limited(world, ssl.TLSVersion.TLSv1_1)):
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(shake, listening.port, context)
        await eventually(lambda: left() == before)
    finally:
        gc.enable()


async def test_fifty_reloads_fail_no_handshake(world: World) -> None:
    watch = FileWatch()
    async with (
        running_http1_relay() as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        watch.add(listening.tls)
        context = world.client_context()
        contexts = set()
        for _ in range(50):
            clients = [asyncio.to_thread(shake, listening.port, context) for _ in range(3)]
            running = asyncio.gather(*clients)
            await asyncio.sleep(0)
            world.pair("server", "localhost")
            poll(watch)
            contexts.add(listening.tls.context("localhost"))
            answers = await running
            assert all(seen.answer.startswith(b"HTTP/1.1 200 ") for seen in answers)
        assert len(contexts) == 50
        assert (watch.failures, listening.failures) == (0, [])


# Key updates


class CraftedClient:
    """A client over a socket whose records a `RecordWriter` seals once the handshake is over."""

    def __init__(self, world: World, port: int) -> None:
        context = logging_context(world)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                incoming.write(self.socket.recv(65536))
            else:
                break
        self.socket.sendall(outgoing.read())
        self.writer = writer_of(context)
        self._incoming, self._secure = incoming, secure

    def __enter__(self) -> CraftedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def read_until(self, end: bytes) -> bytes:
        """Read until what came ends like this, or the server says goodbye."""
        answer = b""
        while not answer.endswith(end):
            try:
                piece = self._secure.read(65536)
            except ssl.SSLWantReadError:
                self._incoming.write(self.socket.recv(65536))
                continue
            except ssl.SSLZeroReturnError:
                break
            if not piece:
                break
            answer += piece
        return answer


class Collector(asyncio.Protocol):
    """Keeps what it gets in one piece each."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


async def test_a_flood_of_key_updates_is_spread_over_iterations(world: World) -> None:
    sent = bytes(5000)
    pieces: list[bytes] = []

    def send(port: int) -> None:
        with CraftedClient(world, port) as client:
            client.socket.sendall(trickle(client.writer, sent) + client.writer.goodbye())
            client.read_until(b"the end")

    async with tls_listener(world.options(), {"http/1.1": lambda: Collector(pieces)}) as listening:
        await asyncio.to_thread(send, listening.port)
    assert b"".join(pieces) == sent
    # Two records and 15 units for each key update, and the slice that exceeds the budget.
    assert max(map(len, pieces)) <= ROOM / 17 + 16


async def test_a_key_update_after_a_refusal_is_no_error(world: World) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def send(port: int) -> bytes:
        with CraftedClient(world, port) as client:
            client.socket.sendall(client.writer.data(b"BAD\r\n\r\n"))
            answer = client.read_until(b"never")
            client.socket.sendall(trickle(client.writer, b"more"))
            client.socket.sendall(client.writer.goodbye())
            return answer

    async with (
        running_http1_relay() as relay,
        tls_listener(world.options(), {"http/1.1": relay.accept}) as listening,
    ):
        answer = await asyncio.to_thread(send, listening.port)
        await eventually(lambda: not any(each.transport for each in relay.clients))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert errors == []
