from __future__ import annotations

import asyncio

import pytest

from lb.control.pending import PendingReader
from lb.domain.backend import Backend, BackendSpec, parse_address
from lb.net.ask.asker import Asker
from tests.fakes.http1_backend import Peer, eventually, reply, scripted_backend

PAGE = b'nv_inference_pending_request_count{model="m",version="1"} 5\n'


async def serve(peer: Peer) -> None:
    received = await peer.request()
    is_known = received.target == b"/metrics"
    await peer.send(reply(PAGE) if is_known else reply(status=b"404 Not Found"))


def backend(name: str, metrics: str = "") -> Backend:
    address = parse_address("127.0.0.1:1")
    return Backend(
        BackendSpec(name=name, http=address, metrics=parse_address(metrics) if metrics else None)
    )


async def test_those_that_show_metrics_are_asked_and_the_others_are_not() -> None:
    async with asyncio.timeout(20), scripted_backend(serve) as triton:
        told: list[tuple[str, bytes, float]] = []
        pool = [backend("a", triton.target), backend("b"), backend("gone", "127.0.0.1:1")]
        reader = PendingReader(
            Asker(), lambda: pool, lambda each, *said: told.append((each.name, *said))
        )
        await reader.look()
        assert told == [("a", b"m", 5.0)]


async def test_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pool = [backend("gone", "127.0.0.1:1")]
    reader = PendingReader(Asker(), lambda: pool, lambda *_: None)
    async with asyncio.timeout(20):
        await reader.look()
        await reader.look()
    assert len(caplog.records) == 1


async def test_it_asks_as_often_as_it_is_told_and_can_be_switched_on_and_off() -> None:
    async with asyncio.timeout(20), scripted_backend(serve) as triton:
        count = 0
        twice = asyncio.Event()

        def told(*_: object) -> None:
            nonlocal count
            count += 1
            if count >= 2:
                twice.set()

        pool = [backend("a", triton.target)]
        reader = PendingReader(Asker(), lambda: pool, told)
        reader.use(0.0)
        assert len(reader._tasks) == 0
        reader.use(0.01)
        await twice.wait()
        reader.use(0.0)
        await eventually(lambda: not len(reader._tasks))
        reader.use(60.0)
        assert len(reader._tasks) == 1
        await reader.aclose()
