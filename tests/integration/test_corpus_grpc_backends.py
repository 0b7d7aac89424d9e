"""Bad gRPC backends behind the process as users run it, with a good one beside: what the client
hears, what becomes of the connection, who else is affected, and what is sent again."""

from __future__ import annotations

import asyncio
import socketserver
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.corpus.grpc_backend_play import Verdicts, play_all_now
from tests.corpus.grpc_backends import BY_ID, DEVIATIONS, ROWS
from tests.corpus.http2_play import connected
from tests.corpus.http2_process import PACES, Served, serving, wanted_ids
from tests.fakes.certificates import Authority, expired
from tests.fakes.grpc_server import grpc_server
from tests.fakes.tls import World
from tests.wire import frames as fr
from tests.wire.http2 import greet

UNAVAILABLE = 14


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All rows that this run asks for, played once."""
    wanted = wanted_ids(request)
    rows = [row for row in ROWS if row.id in wanted]
    return play_all_now(tmp_path_factory.mktemp("corpus"), rows)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("id_", BY_ID)
def test_backend_does_harm_to_its_own_call_only(verdicts: Verdicts, id_: str, pace: str) -> None:
    flaw = verdicts[id_, pace]
    if flaw is not None:
        raise AssertionError(f"{BY_ID[id_]}: {flaw!r}") from flaw


def test_every_row_has_its_own_name() -> None:
    assert len(BY_ID) == len(ROWS)


def test_every_deviation_is_about_rows() -> None:
    for id_, reason in DEVIATIONS.items():
        assert any(row.id.startswith(id_) for row in ROWS)
        assert reason


# U-19: backends whose TLS is none, or not to be trusted


@asynccontextmanager
async def listening(said: bytes = b"", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that says something to whoever connects, and closes.

    It has threads of its own, which end with it: asyncio before Python 3.12 cannot wait for
    connections whose handshake is not over.
    """

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(60)
            with suppress(OSError):
                client = tls.wrap_socket(self.request, server_side=True) if tls else self.request
                client.sendall(said)
                client.close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            await asyncio.to_thread(server.shutdown)
            serving.join()


def server_context(world: World, pair: tuple[str, str], protocol: str = "h2") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    context.set_alpn_protocols([protocol])
    return context


ALERT = b"\x15\x03\x03\0\2\x02\x28"
"""Fatal: handshake failure."""
NOT_TRUSTED: dict[str, Callable[[World], Any]] = {
    "alert": lambda world: listening(ALERT),
    "plain": lambda world: listening(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "closed": lambda world: listening(),
    "alpn": lambda world: listening(tls=server_context(world, world.server, "http/1.1")),
    "expired": lambda world: listening(
        tls=server_context(
            world,
            world.authority.issue("127.0.0.1", not_after=expired()).write(world.folder, "old"),
        )
    ),
    "name": lambda world: listening(
        tls=server_context(world, world.pair("elsewhere", "elsewhere.test"))
    ),
    "authority": lambda world: listening(
        tls=server_context(
            world, Authority("Nobody").issue("127.0.0.1").write(world.folder, "stranger")
        )
    ),
}
REASONS = {
    "alert": "alert",
    "plain": "wrong version number",
    "closed": "closed",
    "alpn": "h2",
    "expired": "expired",
    "name": "127.0.0.1",
    "authority": "issuer",
}
"""What the log says of each, among other words."""


async def call(served: Served) -> tuple[int | None, str]:
    """One call: its status and message."""
    async with connected(served.ports["plain"]) as client:
        await greet(client)
        client.send(fr.call(1))
        await client.until_over(1)
        return client.status(1), client.fields(1).get(b"grpc-message", b"").decode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Certificates of the backends."""
    folder = tmp_path / "behind"
    folder.mkdir()
    return World(folder)


@asynccontextmanager
async def untrusted(world: World) -> AsyncIterator[list[dict[str, Any]]]:
    """All of them, as in the configuration."""
    tls = {"ports": ["grpc"], "ca": world.ca}
    async with AsyncExitStack() as stack:
        yield [
            {"name": name, "grpc": await stack.enter_async_context(make(world)), "tls": tls}
            for name, make in NOT_TRUSTED.items()
        ]


async def test_calls_fail_that_reach_only_backends_that_are_not_to_be_trusted(
    world: World, tmp_path: Path
) -> None:
    async with (
        untrusted(world) as backends,
        serving(
            tmp_path, backends, balancing={"policy": "round_robin"}, retry={"attempts": 1}
        ) as served,
    ):
        texts = []
        for _ in backends:
            status, text = await call(served)
            assert status == UNAVAILABLE
            texts.append(text)
    for name, reason in REASONS.items():
        about = [text for text in texts if f"backend {name} " in text]
        assert len(about) == 1
        assert reason in about[0]


async def test_a_backend_to_be_trusted_gets_all_calls(world: World, tmp_path: Path) -> None:
    async with untrusted(world) as backends:
        pair = world.authority.issue("127.0.0.1")
        credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
        async with grpc_server(credentials) as (service, target):
            good = {**backends[0], "name": "good", "grpc": target}
            attempts = {"attempts": 1 + len(backends)}
            async with serving(tmp_path, [*backends, good], retry=attempts) as served:
                assert [await call(served) for _ in range(10)] == 10 * [(0, "")]
            assert service.calls == 10
