"""Every bad backend of the corpus behind the process: the client sees an error or a visible cut,
the connection is not used again, and no later request gets a byte of what came too much."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from tests.corpus.backends import ALL, DEVIATIONS, EVIL, HELLO, OK, End, Misdeed, Sees
from tests.corpus.clients import corpus_client, pieces_of
from tests.corpus.observer import told
from tests.corpus.serving import Serving, serving
from tests.fakes.certificates import Pair, expired
from tests.fakes.tls import World
from tests.wire.http1 import Answer, Peer, RawClient, ScriptedBackend, reply, scripted_backend
from tests.wire.waiting import soon

_AT_ONCE = 25
_CLOSED_WITHIN_S = 20.0
"""Less than the 30 s after which an idle connection to a backend is closed."""
_ROWS = {row.id.encode(): row for row in ALL}
_GROUPS = tuple(dict.fromkeys(row.id.rstrip("abcdefghijklmnopqrstu") for row in ALL))


@dataclass
class Stage:
    """The process and a backend that does what the path says."""

    balancer: Serving
    trusting: ssl.SSLContext
    backend: ScriptedBackend
    reused: list[str] = field(default_factory=list)
    """Rows whose connection got another request."""
    left_open: list[str] = field(default_factory=list)
    """Rows whose connection was not closed by us in time."""
    kept: list[str] = field(default_factory=list)
    """Rows whose connection was kept."""
    begun: dict[str, asyncio.Event] = field(default_factory=dict)
    """By row, whether its client has the beginning of the answer."""
    speak: asyncio.Event = field(default_factory=asyncio.Event)
    """After `/unsolicited` was answered, that connection waits for this to say more."""
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when that connection was closed by us."""

    async def serve(self, peer: Peer) -> None:
        """Answer with the misdeed that `/ROW/PACE` asks for, anything else properly."""
        while True:
            request = await peer.request()
            _, name, *rest = request.target.split(b"/")
            row = _ROWS.get(name)
            if name == b"unsolicited":
                await peer.send(reply(b"asked for"))
                await self.speak.wait()
                await peer.send(EVIL)
                assert await peer.closed() == b""
                self.hung_up.set()
                return
            if row is None:
                host = request.field(b"host") or b""
                await peer.send(reply(told(host, request.target, request.body)))
                continue
            await self._misbehave(peer, row, bytewise=rest == [b"bytes"])
            if not row.is_reused:
                return
            self.kept.append(str(row))

    async def _misbehave(self, peer: Peer, row: Misdeed, *, bytewise: bool) -> None:
        try:
            if bytewise and row.wire:
                await self._send_bytewise(peer, row)
            elif row.wire:
                await peer.send(row.wire + row.surplus)
        except ConnectionError:
            return  # refused before all of it was said
        if row.is_reused or row.end is End.CLOSES:
            return
        if row.end is End.RESETS:
            await peer.until_read()  # a reset discards what is not
            await peer.reset()
            return
        try:
            if await asyncio.wait_for(peer.closed(), _CLOSED_WITHIN_S):
                self.reused.append(str(row))
        except TimeoutError:
            self.left_open.append(str(row))

    async def _send_bytewise(self, peer: Peer, row: Misdeed) -> None:
        """Send an answer byte by byte. Where its client is to see a cut, the client has the good
        beginning before the rest follows."""
        good = row.wire.index(HELLO) + len(HELLO) if row.sees is Sees.CUT else 0
        *pieces, last = *pieces_of(row.wire[:good]), *pieces_of(row.wire[good:])
        sent = 0
        for piece in (*pieces, last + row.surplus):
            await peer.send(piece)
            await asyncio.sleep(0.001)
            sent += len(piece)
            if sent == good:
                await self.begun.setdefault(row.id, asyncio.Event()).wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("backends")
    world = World(folder)
    async with scripted_backend() as backend:
        only = {"name": "only", "http": backend.target, "health": {"probe": "tcp"}}
        async with serving(folder, [only], world) as balancer:
            stage = Stage(balancer, world.client_context("http/1.1"), backend)
            backend.script = stage.serve
            yield stage
            assert await balancer.metric("triton_lb_backend_in_flight") == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pace", ["once", "bytes"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("group", _GROUPS)
async def test_misdeed_stays_with_its_request(
    stage: Stage, group: str, secure: bool, pace: str
) -> None:
    rows = [row for row in ALL if row.id.rstrip("abcdefghijklmnopqrstu") == group]
    stage.kept.clear()
    stage.begun.clear()
    port = stage.balancer.https if secure else stage.balancer.http
    context = stage.trusting if secure else None
    wrong: dict[str, list[str]] = {}
    for at in range(0, len(rows), _AT_ONCE):
        part = rows[at : at + _AT_ONCE]
        found = await asyncio.gather(*(_play(stage, port, context, row, pace) for row in part))
        wrong |= {str(row): problems for row, problems in zip(part, found, strict=True) if problems}
    assert not wrong, "\n".join(f"{row}: {'; '.join(found)}" for row, found in wrong.items())
    assert stage.reused == []
    assert stage.left_open == []
    assert sorted(stage.kept) == sorted(str(row) for row in rows if row.is_reused)


async def _play(
    stage: Stage, port: int, context: ssl.SSLContext | None, row: Misdeed, pace: str
) -> list[str]:
    target = f"/{row.id}/{pace}".encode()
    async with corpus_client(port, context) as client:
        await client.send(b"%b %b HTTP/1.1\r\nHost: a\r\n\r\n" % (row.method, target))
        await client.begun()
        stage.begun.setdefault(row.id, asyncio.Event()).set()
        answer = await client.answer(row.method.decode())
        problems = _look_at(row, answer, in_pieces=pace == "bytes")
        if not answer.complete:
            if not await client.is_closed():
                problems.append("something follows the cut")
        elif answer.fields.get(b"connection") != b"close":
            problems += await _ask_cleanly(client, b"same-" + row.id.encode())
    async with corpus_client(port, context) as other:
        problems += await _ask_cleanly(other, b"next-" + row.id.encode())
    return problems


def _look_at(row: Misdeed, answer: Answer, *, in_pieces: bool) -> list[str]:
    got = f"{answer.status} {'complete' if answer.complete else 'cut'} {answer.body[:80]!r}"
    problems = []
    match row.sees:
        case Sees.ERROR:
            is_right = answer.status == 502 and answer.complete
        case Sees.CUT:
            is_right = answer.status == 502 if answer.complete else answer.status == 200
            is_right = is_right and not (in_pieces and answer.complete)
        case Sees.ANSWER:
            is_right = answer.complete and (answer.status, answer.body) == (row.status, row.body)
            if len(answer.interim) != row.interim:
                problems.append(f"interim answers {answer.interim}")
    if not is_right:
        problems.append(f"got {got} instead of {row.sees.value}")
    if len(answer.interim) > 10:
        problems.append(f"{len(answer.interim)} interim answers")
    if answer.status == 502 and not answer.body.startswith(b'{"error": "backend only (http) '):
        problems.append(f"the error says {answer.body!r}")
    problems += [f"not dropped: {name!r}" for name in row.lacks if name in answer.fields]
    return problems


async def _ask_cleanly(client: RawClient, host: bytes) -> list[str]:
    await client.send(b"GET /clean HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    answer = await client.answer()
    if (answer.status, answer.body) != (200, told(host, b"/clean", b"")):
        return [f"a clean request got {answer.status} {answer.body!r}"]
    return []


@pytest.mark.asyncio(loop_scope="module")
async def test_u15_bytes_that_nobody_asked_for_close_an_idle_connection(stage: Stage) -> None:
    async with corpus_client(stage.balancer.http, None) as client:
        await client.send(b"GET /unsolicited HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).body == b"asked for"
        stage.speak.set()
        await soon(stage.hung_up.wait())
        for number in range(20):
            assert await _ask_cleanly(client, b"after-%d" % number) == []


def _context(world: World, pair: Pair, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.write(world.folder, name))
    return context


async def _alert(peer: Peer) -> None:
    await peer.reader.read(1)
    await peer.send(b"\x15\x03\x03\x00\x02\x02\x28")


async def _hang_up(peer: Peer) -> None:
    await peer.reader.read(1)


async def test_u19_backend_whose_tls_fails_is_passed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stranger = World(elsewhere)
    late = world.authority.issue("127.0.0.1", not_after=expired())
    other = world.authority.issue("elsewhere.example")
    async with (
        scripted_backend() as good,
        scripted_backend() as plain,
        scripted_backend(_alert) as alerting,
        scripted_backend(_hang_up) as silent,
        scripted_backend(tls=_context(world, late, "late")) as old,
        scripted_backend(tls=_context(world, other, "other")) as misnamed,
        scripted_backend(tls=stranger.server_context()) as unknown,
    ):
        bad = {
            "plain": plain, "alerting": alerting, "silent": silent, "old": old,
            "misnamed": misnamed, "unknown": unknown,
        }  # fmt: skip
        tls = {"ports": ["http"], "ca": world.ca}
        backends = [{"name": "good", "http": good.target, "health": {"probe": "tcp"}}]
        backends += [
            {"name": name, "http": backend.target, "health": {"probe": "tcp"}, "tls": tls}
            for name, backend in bad.items()
        ]
        async with serving(
            tmp_path, backends, balancing={"policy": "round_robin"},
            retry={"attempts": 8}, log={"level": "debug"}, timeouts={"handshake": "300ms"},
        ) as balancer:  # fmt: skip
            async with corpus_client(balancer.http, None) as client:
                for _ in range(4):
                    await client.send(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
                    answer = await client.answer()
                    assert (answer.status, answer.body) == (200, b"ok")
            log = balancer.process.log.read_text()
            assert all(not backend.requests for backend in bad.values())
            for name in bad:
                told_why = [line for line in log.splitlines() if name in line and "TLS" in line]
                assert told_why, name


async def test_u20_liar_does_not_touch_the_others(tmp_path: Path) -> None:
    async def lie(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.target.startswith(b"/v2/health/"):
                await peer.send(reply(b""))
            else:
                await peer.send(reply(b'{"error":"no"}', status=b"503 Service Unavailable"))

    async with scripted_backend() as good, scripted_backend(lie) as liar:
        backends = [
            {"name": "good", "http": good.target}, {"name": "liar", "http": liar.target},
        ]  # fmt: skip
        async with (
            serving(tmp_path, backends, balancing={"policy": "round_robin"}) as balancer,
            corpus_client(balancer.http, None) as client,
        ):
            answers = []
            for _ in range(10):
                await client.send(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
                answer = await client.answer()
                answers.append((answer.status, answer.body))
            assert set(answers) == {(200, b"ok"), (503, b'{"error":"no"}')}
    assert "U-20" in DEVIATIONS


def test_rows_have_their_own_ids_and_sources() -> None:
    assert len(_ROWS) == len(ALL)
    assert all(row.source for row in ALL)
    assert any(row.wire.startswith(OK) for row in ALL)
