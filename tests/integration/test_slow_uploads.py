"""Clients that take their time to send a request, over real sockets and in virtual time: neither
others nor the backend pay for that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest

from lb.domain.backend import AppProtocol, Backend
from lb.domain.fault import Fault
from lb.kserve import inference_pb2 as pb
from tests.fakes.clock import FakeLoop
from tests.fakes.gated import HttpSide, Side, grpc_side, http_side, until
from tests.wire import http2
from tests.wire.frames import (
    INITIAL_WINDOW_SIZE,
    WINDOW_UPDATE,
    data,
    headers,
    message,
    request_fields,
)
from tests.wire.http1 import RawClient, raw_client

SIDES = {"grpc": grpc_side, "http": http_side}
_SIZE: Final = 100_000
"""Bytes of a tensor, of which half does not fit in what is read before a request is placed."""
_HELD: Final = 1 << 20
"""Bytes that may come of a request while it waits: no more is read then, or no window is left."""
_ALLOWED: Final = {"grpc": _HELD, "http": _HELD + 2**18}
"""Bytes that a client can send until then."""
_STREAM: Final = b"/inference.GRPCInferenceService/ModelStreamInfer"


class Upload:
    """A request of which a part was sent."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    async def send(self, size: int) -> None:
        """Send the next bytes."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Send the rest."""
        await self.send(len(self._left))

    async def code(self) -> int:
        """The status that it is answered with."""
        raise NotImplementedError


class _HttpUpload(Upload):
    def __init__(self, client: RawClient, content: bytes) -> None:
        super().__init__(content)
        self._client = client

    async def send(self, size: int) -> None:
        part, self._left = self._left[:size], self._left[size:]
        await self._client.send(part)

    async def code(self) -> int:
        return (await self._client.answer("POST")).status


class _GrpcUpload(Upload):
    def __init__(self, client: http2.Peer, content: bytes) -> None:
        super().__init__(content)
        self._client = client
        self._sent = 0

    @property
    def _window(self) -> int:
        credit = sum(
            each.increment
            for each in self._client.seen
            if each.kind == WINDOW_UPDATE and each.stream == 1
        )
        return self._client.values[INITIAL_WINDOW_SIZE] + credit - self._sent

    async def send(self, size: int) -> None:
        while size:
            while not self._window:
                await self._client.until_kind(WINDOW_UPDATE, 1)
            part = self._left[: min(size, self._window, 16384)]
            size -= len(part)
            self._sent += len(part)
            self._left = self._left[len(part) :]
            self._client.send(data(1, part, end=not self._left))

    async def code(self) -> int:
        await self._client.until_over(1)
        status = self._client.status(1)
        assert status is not None
        return status


@asynccontextmanager
async def half_sent(
    side: Side,
    name: str,
    *,
    size: int = _SIZE,
    sent: int = _SIZE // 2,
    queued: int = 0,
    is_placed: bool = True,
) -> AsyncIterator[Upload]:
    """Send a part of a request, until its backend awaits the rest, or as many wait for their turn
    as `queued` says; or, where it is not placed, until it has come."""

    async def send(upload: Upload) -> None:
        before = side.relay.open_requests
        await upload.send(sent)
        if not is_placed:
            await until(lambda: side.relay.open_requests > before, "it has come")
        elif queued:
            await until(lambda: len(side.queue) == queued, "it waits")
        else:
            await until(side.relay.awaits_uploads, "the rest is awaited")

    upload: Upload
    if isinstance(side, HttpSide):
        async with raw_client(side.relay.port) as client:
            upload = _HttpUpload(client, side.request(name, size=size))
            await send(upload)
            yield upload
        return
    content = pb.ModelInferRequest(model_name="m", id=name, raw_input_contents=[bytes(size)])
    content.inputs.add(name="IN", datatype="INT8", shape=[1, size])
    async with http2.raw_client(side.relay.port) as peer:
        peer.send(headers(1, request_fields()))
        upload = _GrpcUpload(peer, message(content.SerializeToString()))
        await send(upload)
        yield upload


class Judge:
    """Notes what those who judge backends are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        self.told.append(("answered", round(took_s, 3)))

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        self.told.append(("failed", round(took_s, 3)))

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        self.told.append(("abandoned", round(waited_s, 3)))


def limit(side: Side, max_requests: int) -> Backend:
    backend = side.relay.backends[0]
    backend.apply(replace(backend.spec, max_in_flight=max_requests))
    return backend


@pytest.mark.parametrize("protocol", SIDES)
async def test_a_slow_upload_takes_no_place_of_its_backend_until_it_is_complete(
    protocol: str,
) -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        backend, gate = limit(side, 1), side.gates[0]
        async with half_sent(side, "slow") as upload:
            assert (await side.ask("too early")).code == side.overloaded
            loop.advance(0.2)
            assert (backend.in_flight, backend.set_aside) == (1, 1)
            other = await side.asked("other")
            assert (await side.ask("one too many")).code == side.overloaded
            # It is complete now, and is executed be there room or not.
            await upload.finish()
            await until(lambda: "slow" in gate.running, "it runs")
            assert (backend.in_flight, backend.set_aside) == (2, 0)
            gate.release("other")
            assert (await other).code == side.ok
            assert (await side.ask("one beside it")).code == side.overloaded
            gate.release("slow")
            assert await upload.code() == side.ok
        await side.until_clean()
        assert (backend.in_flight, backend.set_aside, backend.max_in_flight) == (0, 0, 1)


@pytest.mark.parametrize("protocol", SIDES)
async def test_a_slow_upload_whose_client_leaves_gives_no_place_away(protocol: str) -> None:
    loop, judge = FakeLoop(), Judge()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        side.relay.judge = judge
        backend = limit(side, 1)
        async with half_sent(side, "slow"):
            loop.advance(5.0)
            assert backend.set_aside == 1
        await until(lambda: not backend.in_flight, "it has left")
        loop.advance(1.0)
        assert (backend.set_aside, backend.max_in_flight) == (0, 1)
        assert judge.told == []


async def test_an_open_stream_keeps_its_place() -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), grpc_side(1, loop=loop) as side:
        backend = limit(side, 1)
        async with http2.raw_client(side.relay.port) as peer:
            content = pb.ModelInferRequest(model_name="m", id="stream").SerializeToString()
            peer.send(headers(1, request_fields(path=_STREAM)), data(1, message(content)))
            await until(lambda: backend.in_flight == 1, "it is placed")
            loop.advance(5.0)
            assert backend.set_aside == 0
            assert (await side.ask("other")).code == side.overloaded


@pytest.mark.parametrize("protocol", SIDES)
async def test_a_backend_is_judged_by_the_time_since_a_request_was_complete(protocol: str) -> None:
    loop, judge = FakeLoop(), Judge()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        side.relay.judge = judge
        backend, gate = side.relay.backends[0], side.gates[0]
        backend.reports_due = 1
        async with half_sent(side, "slow") as upload:
            loop.advance(5.0)
            await upload.finish()
            await until(lambda: "slow" in gate.running, "it runs")
            loop.advance(0.5)
            gate.release("slow")
            assert await upload.code() == side.ok
        assert judge.told == [("answered", 0.5)]
        latencies = [port.latency.sum for port in backend.ports if port is not None]
        assert sum(latencies) == pytest.approx(0.5)


@pytest.mark.parametrize("protocol", SIDES)
async def test_a_slow_upload_is_not_taken_for_a_lost_request(protocol: str) -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        side.schedule()
        gate = side.gates[0]
        gate.open = True
        for number in range(16):
            assert (await side.ask(f"usual {number}")).code == side.ok
        async with half_sent(side, "slow") as upload:
            loop.advance(5.0)
            assert (await side.ask("other")).code == side.ok
            await upload.finish()
            assert await upload.code() == side.ok
        assert side.relay.backends[0].lost_requests == 0


@pytest.mark.parametrize("protocol", SIDES)
async def test_slow_uploads_get_no_turn_before_they_are_complete(protocol: str) -> None:
    loop = FakeLoop()
    async with (
        asyncio.timeout(60),
        SIDES[protocol](1, loop=loop) as side,
        AsyncExitStack() as stack,
    ):
        side.schedule()
        backend, gate = side.relay.backends[0], side.gates[0]
        first = await side.asked("first")
        uploads = [
            await stack.enter_async_context(half_sent(side, f"slow {number}", queued=number + 1))
            for number in range(3)
        ]
        good = await side.asked("good")
        loop.advance(0.2)
        gate.release("first")
        assert (await first).code == side.ok
        loop.turn()
        await until(lambda: "good" in gate.running, "it runs while no time passes")
        assert (backend.in_flight, len(side.queue)) == (1, 3)
        for upload in uploads:
            await upload.finish()
        codes = asyncio.gather(*(upload.code() for upload in uploads))
        for _ in uploads:
            gate.release()
            await until(lambda: not gate.running, "it is answered")
            loop.advance(0.1)
            await until(lambda: bool(gate.running), "the next one runs, alone")
            assert (backend.in_flight, len(gate.running)) == (1, 1)
        gate.release()
        assert await codes == [side.ok] * 3
        assert (await good).code == side.ok


_SMALL: Final = 20_000
"""Bytes of a tensor, all of which come before its request is placed."""


@pytest.mark.parametrize("protocol", SIDES)
async def test_half_of_a_small_request_takes_no_place(protocol: str) -> None:
    """Nor does it while no time passes: many may follow each other."""
    loop = FakeLoop()
    async with (
        asyncio.timeout(60),
        SIDES[protocol](1, loop=loop) as side,
        AsyncExitStack() as stack,
    ):
        side.schedule()
        backend, gate = side.relay.backends[0], side.gates[0]
        gate.open = True
        uploads = [
            await stack.enter_async_context(
                half_sent(side, f"slow {number}", size=_SMALL, sent=_SMALL // 2, is_placed=False)
            )
            for number in range(3)
        ]
        assert (await side.ask("good")).code == side.ok
        assert (backend.in_flight, len(side.queue)) == (0, 0)
        for upload in uploads:
            await upload.finish()
            assert await upload.code() == side.ok


_SEPARATE: Final = "compressed", "in chunks"


@pytest.mark.parametrize("how", _SEPARATE)
async def test_half_of_a_small_request_of_unknown_content_takes_no_place(how: str) -> None:
    async with asyncio.timeout(60), http_side() as side:
        assert isinstance(side, HttpSide)
        side.schedule()
        gate = side.gates[0]
        gate.open = True
        is_compressed = how == "compressed"
        fields = {"Content-Encoding": "identity"} if is_compressed else {}
        head, _, body = side.request("slow", size=_SMALL, fields=fields).partition(b"\r\n\r\n")
        if is_compressed:
            head = head.replace(b"identity", b"gzip")
        else:
            head = re.sub(rb"Content-Length: \d+$", b"Transfer-Encoding: chunked", head)
            body = b"".join((b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n"))
        async with raw_client(side.relay.port) as client:
            await client.send(b"\r\n\r\n".join((head, body[: _SMALL // 2])))
            await until(lambda: side.relay.open_requests == 1, "it has come")
            assert (await side.ask("good")).code == side.ok
            assert side.relay.backends[0].in_flight == 0
            await client.send(body[_SMALL // 2 :])
            assert (await client.answer("POST")).status == 200
        assert gate.seen == ["good", "slow"]


@pytest.mark.parametrize("protocol", SIDES)
async def test_a_slow_upload_is_forgotten_whose_client_leaves_after_its_turn(protocol: str) -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        side.schedule()
        gate = side.gates[0]
        first = await side.asked("first")
        async with half_sent(side, "slow", queued=1):
            loop.advance(0.2)
            gate.release("first")
            assert (await first).code == side.ok
            loop.turn()
            assert len(side.queue) == 1
        await side.until_clean()
        assert gate.seen == ["first"]


@pytest.mark.parametrize("protocol", SIDES)
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_large_upload_has_its_turn_when_no_more_of_it_may_come(
    protocol: str, is_late: bool
) -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as side:
        side.schedule()
        backend, gate = side.relay.backends[0], side.gates[0]
        first = await side.asked("first")
        held = _HELD * (2 if side.protocol is AppProtocol.GRPC else 1)  # one for another attempt
        async with half_sent(
            side, "large", size=3 * _HELD, sent=_SIZE if is_late else _ALLOWED[protocol], queued=1
        ) as upload:
            if not is_late:
                await until(lambda: side.relay.memory_budget.held >= held, "no more may come")
            loop.advance(0.5)
            gate.release("first")
            assert (await first).code == side.ok
            loop.turn()
            if is_late:
                assert backend.in_flight == 0, "its client is slow"
                await upload.send(_ALLOWED[protocol] - _SIZE)
                await until(lambda: side.relay.memory_budget.held >= held, "no more may come")
                loop.advance(0.1)
            assert (backend.in_flight, backend.set_aside) == (1, 0)
            await upload.finish()
            await until(lambda: "large" in gate.running, "it runs")
            gate.release("large")
            assert await upload.code() == side.ok
