"""What clients should not send, seen from inside: reasons, times, and that nothing is left.

Every row of the corpus is played against the process in `test_corpus_http1`.
"""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.outcome import Reason
from tests.corpus.http1 import ALL
from tests.corpus.http1_rows import Row
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import running_http1_relay
from tests.wire.http1 import Peer, ScriptedBackend, post, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually, soon

BOTH_LOOPS = True
_OPTIONS = {"linger_s": 0.2}


_ONE_OF_EACH = {
    (row.status, row.late): row
    for row in ALL
    if row.is_refused and not row.half_close and len(row.wire) < 20_000
}


@pytest.mark.parametrize("step", [0, 1], ids=["at once", "by bytes"])
@pytest.mark.parametrize("row", _ONE_OF_EACH.values(), ids=str)
async def test_refusal_is_told_with_its_reason_and_leaves_nothing(row: Row, step: int) -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS) as relay,
        raw_client(relay.port) as client,
    ):
        sending = asyncio.ensure_future(client.send(row.wire, step=step))
        answer = await client.answer()
        try:
            await sending
        except ConnectionError:
            pass  # refused before all of it was sent
        assert answer.status == row.status
        assert await client.is_closed()
        await eventually(relay.is_clean)
        assert relay.finished.records[0].status == row.status
        assert relay.finished.records[0].reason is not None


@pytest.mark.parametrize(
    "wire",
    [
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
        b"HEAD /v2/models/a%2fb HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: a\r\n",
    ],
)
@pytest.mark.parametrize("step", [0, 1])
async def test_refusal_of_a_head_request_has_no_body(wire: bytes, step: int) -> None:
    options = {"linger_s": 0.1, "body_size": 1000, "head_timeout_s": 0.3}
    async with (
        running_http1_relay(options=options) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(wire, step=step)
        answer = await client.answer("HEAD")
        assert answer.status in (400, 408, 413)
        assert int(answer.fields[b"content-length"]) > 0
        assert await client.is_closed()


async def test_leading_zeros_arrive_canonical() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 05\r\n\r\nhello")
        assert (await client.answer()).complete
    assert backend.requests[0].head == b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"


async def test_request_behind_a_bad_one_is_not_served() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=_OPTIONS) as relay,
        raw_client(relay.port) as client,
    ):
        good = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        await client.send(good + b"GET / HTTP/1.1\r\n\r\n" + good)
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.is_closed()
    assert len(backend.requests) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit_is_refused(chunked: bool) -> None:
    options = {"body_size": 1000, "linger_s": 0.2}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        head = b"POST / HTTP/1.1\r\nHost: a\r\n"
        if chunked:
            await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001)
        else:
            await client.send(head + b"Content-Length: 1001\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 413
        assert relay.finished.records[0].reason is Reason.BODY_TOO_LARGE
        assert chunked or backend.connections == 0


async def _slow_head(backend: ScriptedBackend, sent: bytes, **times: float) -> tuple[int, bool]:
    options = {"linger_s": 0.1, **times}
    async with (
        running_http1_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(sent)
        answer = await client.answer()
        closed = await client.is_closed()
        await eventually(relay.is_clean)
        return answer.status, closed


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (b"\r\n", 0),
        (b"G", 408),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", 408),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", 408),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell", 408),
    ],
)
async def test_silence_is_answered_in_time(sent: bytes, status: int) -> None:
    async with scripted_backend() as backend:
        times = {"head_timeout_s": 0.1, "body_timeout_s": 0.1}
        assert await _slow_head(backend, sent, **times) == (status, True)


async def test_head_that_drips_is_not_given_more_time() -> None:
    options = {"head_timeout_s": 0.2, "linger_s": 0.1}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        dripping = asyncio.ensure_future(_drip(client, b"GET / HTTP/1.1\r\nX: " + b"a" * 2000))
        answer = await client.answer()
        assert loop.time() - started >= 0.19
        assert not dripping.done(), "the answer did not wait for the rest"
        dripping.cancel()
        assert answer.status == 408


async def _drip(client: object, text: bytes, gap_s: float = 0.01) -> None:
    for byte in text:
        await client.send(bytes((byte,)))  # type: ignore[attr-defined]
        await asyncio.sleep(gap_s)


async def test_body_that_drips_goes_on() -> None:
    """For longer than a body may stand still."""
    loop, came = FakeLoop(), asyncio.Queue[bytes]()

    async def script(peer: Peer) -> None:
        await peer.head()
        for _ in range(40):
            came.put_nowait(await peer.reader.readexactly(1))
        await peer.send(reply())

    options = {"body_timeout_s": 1.0}
    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options=options, loop=loop) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(post(b"", size=40))
        for _ in range(40):
            await client.send(b"x")
            assert await soon(came.get()) == b"x"
            loop.advance(0.9)
        assert (await client.answer("POST")).status == 200


async def test_idle_client_is_closed_in_time() -> None:
    loop = FakeLoop()
    options = {"client_idle_s": 1.0}
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=options, loop=loop) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(3):
            await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.answer()).complete
            await eventually(relay.is_clean)
            loop.advance(0.9)
        assert relay.client_connections == 1
        loop.advance(0.2)
        assert await client.is_closed()
