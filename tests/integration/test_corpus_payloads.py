"""Every row of the KServe corpus against the process, by the rules that are in force there, and
what backends tell that clients must not learn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.corpus import payloads
from tests.corpus.clients import corpus_client
from tests.corpus.http1_play import Stage, play_all
from tests.corpus.http1_rows import Row
from tests.corpus.observer import observing_backend
from tests.corpus.serving import Serving, serving
from tests.fakes.grpc_server import CHANNEL_OPTIONS, grpc_channel, path
from tests.fakes.tls import World
from tests.wire.http1 import Peer, reply, scripted_backend

_RULES: dict[str, tuple[Sequence[Row], dict[str, Any]]] = {
    "by default": (payloads.OPEN, {}),
    "without control": (
        payloads.DENIED + payloads.ALLOWED,
        {"access": {"control": {"loopback": False}}},
    ),
    "with a limit": (payloads.LIMITED, {"limits": {"body_bytes": "1MiB"}}),
}
_NAME = b"triton_python_backend_shm_region_7a-1"
_STREAM = b"/v2/models/m/generate_stream"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_RULES)
async def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Stage, Sequence[Row]]]:
    folder: Path = tmp_path_factory.mktemp("payloads")
    world = World(folder)
    rows, sections = _RULES[request.param]
    async with observing_backend() as (port, memory_budget):
        backends = [{"name": "only", "http": f"127.0.0.1:{port}", "health": {"probe": "tcp"}}]
        async with serving(folder, backends, world, **sections) as balancer:
            stage = Stage(balancer, memory_budget, world.client_context("http/1.1"))
            yield stage, rows
            await stage.check_idle()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("secure", "bytewise"),
    # The corpus of HTTP/1.1 is played by bytes over TLS as well.
    [(False, False), (False, True), (True, False)],
    ids=["plain, at once", "plain, by bytes", "TLS, at once"],
)
async def test_corpus_gets_its_answer(
    stage: tuple[Stage, Sequence[Row]], secure: bool, bytewise: bool
) -> None:
    playing, rows = stage
    await play_all(playing, rows, secure=secure, bytewise=bytewise)


# What backends tell, and what clients leave behind


@dataclass
class Scripted:
    """A process, and what its backend answers to which target, at what pace."""

    balancer: Serving
    answers: dict[bytes, tuple[bytes, int]]
    closed: asyncio.Event
    """Set when we have closed the connection of a stream."""


class _Telling(grpc.GenericRpcHandler):
    """Fails every call with the name of a region."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(self._tell)

    async def _tell(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, f"cannot map {_NAME.decode()}, sorry")
        return b""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    answers: dict[bytes, tuple[bytes, int]] = {}
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.target == _STREAM:
                await _pour(peer, closed)
                return
            whole, pace = answers.get(request.target, (reply(), 0))
            for at in range(0, len(whole), pace or len(whole)):
                await peer.send(whole[at : at + (pace or len(whole))])
                if pace:
                    await asyncio.sleep(0.001)

    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((_Telling(),))
    grpc_at = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with scripted_backend(script) as backend:
        only = {
            "name": "only", "http": backend.target, "grpc": grpc_at, "health": {"probe": "tcp"},
        }  # fmt: skip
        async with serving(tmp_path_factory.mktemp("scripted"), [only]) as balancer:
            yield Scripted(balancer, answers, closed)
    await server.stop(None)


async def _pour(peer: Peer, closed: asyncio.Event) -> None:
    """Send events until the connection is closed."""
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    closing = asyncio.ensure_future(peer.closed())
    while not closing.done():
        try:
            await peer.send(b"9\r\ndata: 1\n\n\r\n")
        except ConnectionError:
            break
        await asyncio.wait((closing,), timeout=0.02)
    closing.cancel()
    closed.set()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("line", "status", "body", "is_masked"),
    [
        (b"POST /v2/models/m/infer", b"500 Internal Server Error", b'{"error":"x %b y"}', True),
        (b"POST /v2/models/m/infer", b"400 Bad Request", b'{"error":"%b"}', True),
        (b"GET /v2/models/m", b"404 Not Found", b'{"error":"%b, %b"}', True),
        (b"POST /v2/models/m/generate_stream", b"200 OK", b'data: {"error":"%b"}\n\n', True),
        (b"POST /v2/models/m/infer", b"200 OK", b'{"outputs":"%b"}', False),
    ],
    ids=["500", "400", "404", "stream", "result"],
)
@pytest.mark.parametrize("pace", [0, 1, 7])
async def test_names_of_internal_regions_are_masked_in_errors(
    scripted: Scripted, line: bytes, status: bytes, body: bytes, is_masked: bool, pace: int
) -> None:
    told = body.replace(b"%b", _NAME)
    method, _, target = line.partition(b" ")
    target += b"?%b-%d" % (status[:3], pace)
    scripted.answers[target] = (reply(told, status=status), pace)
    async with corpus_client(scripted.balancer.http, None) as client:
        await client.send(
            b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % (method, target)
        )
        answer = await client.answer(method.decode())
    assert answer.status == int(status[:3])
    assert answer.complete
    if not is_masked:
        assert answer.body == told
    elif pace:
        # The part that all names share may be out before it is seen to be one.
        assert b"7a-1" not in answer.body
        assert len(answer.body) == len(told)
    else:
        assert answer.body == told.replace(_NAME, b"*" * len(_NAME))


@pytest.mark.asyncio(loop_scope="module")
async def test_names_of_internal_regions_are_masked_in_grpc_messages(scripted: Scripted) -> None:
    async with grpc_channel(f"127.0.0.1:{scripted.balancer.grpc}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path("ModelInfer"))(b"")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == f"cannot map {'*' * len(_NAME)}, sorry"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_t18_stream_ends_at_the_backend_when_its_client_goes(
    scripted: Scripted, how: str
) -> None:
    scripted.closed.clear()
    async with corpus_client(scripted.balancer.http, None) as client:
        await client.send(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" % _STREAM)
        await client.reader.readuntil(b"data: 1\n\n")
        if how == "reset":
            client.reset()
        gone_at = time.monotonic()
    await asyncio.wait_for(scripted.closed.wait(), 30.0)
    assert time.monotonic() - gone_at < 20.0


@pytest.mark.asyncio(loop_scope="module")
async def test_t19_names_of_unknown_models_do_not_fill_the_metrics(scripted: Scripted) -> None:
    before = len(await scripted.balancer.series())
    async with corpus_client(scripted.balancer.http, None) as client:
        for start in range(0, 1000, 100):
            await client.send(
                b"".join(
                    b"GET /v2/models/unknown-%d/ready HTTP/1.1\r\nHost: a\r\n\r\n" % number
                    for number in range(start, start + 100)
                )
            )
            for _ in range(100):
                assert (await client.answer()).status == 200
    series = await scripted.balancer.series()
    assert not [line for line in series if "unknown-" in line]
    assert len(series) - before < 100 * 30


def test_rows_have_their_own_ids_and_sources() -> None:
    assert len({row.id for row in payloads.ALL}) == len(payloads.ALL)
    assert all(row.source for row in payloads.ALL)
    ids = {row.id for row in payloads.ALL}
    assert all(
        any(row == id or row.startswith(id) for row in ids) or id in ("T-16", "T-19")
        for id in payloads.DEVIATIONS
    )
