"""Clients that take their time to send a request, over real sockets and in virtual time: neither
others nor the backend pay for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest

from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.kserve import inference_pb2 as pb
from tests.fakes.clock import FakeLoop
from tests.fakes.gated import HttpSide, Side, grpc_side, http_side, until
from tests.wire import http2
from tests.wire.frames import data, headers, message, request_fields
from tests.wire.http1 import RawClient, raw_client

SIDES = {"grpc": grpc_side, "http": http_side}
_SIZE: Final = 100_000
"""Bytes of a tensor, of which half does not fit in what is read before a request is placed."""
_STREAM: Final = b"/inference.GRPCInferenceService/ModelStreamInfer"


class Upload:
    """A request of which half was sent."""

    async def finish(self) -> None:
        """Send the rest."""
        raise NotImplementedError

    async def code(self) -> int:
        """The status that it is answered with."""
        raise NotImplementedError


class _HttpUpload(Upload):
    def __init__(self, client: RawClient, rest: bytes) -> None:
        self._client = client
        self._rest = rest

    async def finish(self) -> None:
        await self._client.send(self._rest)

    async def code(self) -> int:
        return (await self._client.answer("POST")).status


class _GrpcUpload(Upload):
    def __init__(self, client: http2.Peer, rest: bytes) -> None:
        self._client = client
        self._rest = rest

    async def finish(self) -> None:
        for at in range(0, len(self._rest), 16384):
            part = self._rest[at : at + 16384]
            self._client.send(data(1, part, end=at + len(part) == len(self._rest)))

    async def code(self) -> int:
        await self._client.until_over(1)
        status = self._client.status(1)
        assert status is not None
        return status


@asynccontextmanager
async def half_sent(side: Side, name: str) -> AsyncIterator[Upload]:
    """Send half of a request, until its backend awaits the rest."""

    if isinstance(side, HttpSide):
        request = side.request(name, size=_SIZE)
        async with raw_client(side.relay.port) as client:
            await client.send(request[: _SIZE // 2])
            await until(side.relay.awaits_uploads, "the rest is awaited")
            yield _HttpUpload(client, request[_SIZE // 2 :])
        return
    content = pb.ModelInferRequest(model_name="m", id=name, raw_input_contents=[bytes(_SIZE)])
    content.inputs.add(name="IN", datatype="INT8", shape=[1, _SIZE])
    body = message(content.SerializeToString())
    async with http2.raw_client(side.relay.port) as peer:
        peer.send(headers(1, request_fields()))
        for at in range(0, 3 * 16384, 16384):
            peer.send(data(1, body[at : at + 16384]))
        await until(side.relay.awaits_uploads, "the rest is awaited")
        yield _GrpcUpload(peer, body[3 * 16384 :])


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
