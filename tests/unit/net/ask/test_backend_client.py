"""Calls of our own over real connections, to servers that behave and others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from itertools import pairwise

import pytest

from lb.domain.backend import AppProtocol, BackendSpec, parse_address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.backend_client import BackendClient, _Turns
from lb.net.ask.grpc import GrpcClientCall
from lb.net.ask.http import HttpClientCall
from tests.fakes.grpc_server import grpc_server, path
from tests.wire.http1 import Peer, reply, scripted_backend

HEADERS = (("authorization", "Bearer x"),)


def spec_of(target: str, protocol: AppProtocol = AppProtocol.HTTP) -> BackendSpec:
    address = parse_address(target)
    if protocol is AppProtocol.HTTP:
        return BackendSpec(name="a", http=address, headers=HEADERS)
    return BackendSpec(name="a", grpc=address, headers=HEADERS)


async def failure(spec: BackendSpec, timeout_s: float = 30.0) -> UpstreamError:
    with pytest.raises(UpstreamError) as error:
        await BackendClient().http(spec, b"POST", b"/", (), bytes(1 << 20), timeout_s=timeout_s)
    return error.value


async def test_http_bodies_of_any_size_arrive() -> None:
    async with scripted_backend() as backend:
        for size in (0, 1, 5_000_000):
            answer = await BackendClient().http(
                spec_of(backend.target), b"POST", b"/v2/x?y", (), bytes(size), timeout_s=30
            )
            assert (answer.status, answer.body) == (200, b"ok")
            assert backend.requests[-1].body == bytes(size)
        assert backend.requests[-1].target == b"/v2/x?y"
        assert backend.requests[-1].field(b"authorization") == b"Bearer x"
        assert backend.connections == 3


async def test_grpc_messages_of_any_size_arrive() -> None:
    async with grpc_server() as (service, target):
        spec = spec_of(target, AppProtocol.GRPC)
        for size in (0, 1, 5_000_000):
            answer = await BackendClient().grpc(
                spec, path("ModelInfer").encode(), bytes(size), timeout_s=30
            )
            assert answer.status == 0
            assert answer.message == bytes(size)
        assert ("authorization", "Bearer x") in service.metadata


async def test_grpc_errors_are_answers() -> None:
    async with grpc_server() as (_, target):
        spec = spec_of(target, AppProtocol.GRPC)
        answer = await BackendClient().grpc(spec, path("Fail").encode(), timeout_s=30)
        assert (answer.status, answer.detail) == (3, "bad ünïcode: 100 %")


async def test_a_closed_port_is_refused() -> None:
    async with scripted_backend() as backend:
        target = backend.target
    assert (await failure(spec_of(target))).outcome is Outcome.CONNECT_REFUSED


async def test_silence_is_a_deadline() -> None:
    async def say_nothing(peer: Peer) -> None:
        await peer.closed()

    async with scripted_backend(say_nothing) as backend:
        error = await failure(spec_of(backend.target), 0.05)
    assert error.outcome is Outcome.DEADLINE
    assert error.detail == "no answer within 0.05s"


async def test_a_connection_that_closes_without_an_answer_is_lost() -> None:
    async def hang_up(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123")

    async with scripted_backend(hang_up) as backend:
        assert (await failure(spec_of(backend.target))).outcome is Outcome.LOST


async def test_a_reset_before_any_answer_is_a_refusal() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.reset()

    async with scripted_backend(refuse) as backend:
        assert (await failure(spec_of(backend.target))).outcome is Outcome.CONNECT_REFUSED


async def test_an_answer_before_the_end_of_the_request_counts() -> None:
    async def refuse_early(peer: Peer) -> None:
        await peer.head()
        await peer.send(reply(b"too much", status=b"413 Content Too Large"))
        await peer.closed()

    async with scripted_backend(refuse_early) as backend:
        spec = spec_of(backend.target)
        answer = await BackendClient().http(
            spec, b"POST", b"/", (), bytes(50_000_000), timeout_s=30
        )
    assert (answer.status, answer.body) == (413, b"too much")


async def test_an_answer_for_which_there_is_no_room_is_given_up() -> None:
    kept: list[int] = []

    def keep(size: int) -> bool:
        kept.append(size)
        return False

    async with scripted_backend() as backend:
        spec = spec_of(backend.target)
        with pytest.raises(UpstreamError) as error:
            await BackendClient().http(spec, b"GET", b"/", timeout_s=30, keep=keep)
    assert error.value.outcome is Outcome.CANCELLED
    assert len(kept) == 1


async def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def wait(peer: Peer) -> None:
        await peer.request()
        asked.set()
        await peer.closed()
        closed.set()

    async with scripted_backend(wait) as backend:
        call = asyncio.create_task(
            BackendClient().http(spec_of(backend.target), b"GET", b"/", timeout_s=30)
        )
        await asked.wait()
        call.cancel()
        await asyncio.wait_for(closed.wait(), 30)


async def test_a_port_that_a_backend_does_not_have_is_a_bug() -> None:
    with pytest.raises(LookupError, match="no grpc port"):
        await BackendClient().grpc(spec_of("127.0.0.1:1"), b"/s/M", timeout_s=1)


async def test_answers_that_are_longer_than_wanted_are_not_read() -> None:
    async def long(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(bytes(70_000)))

    async with scripted_backend(long) as backend:
        spec = spec_of(backend.target)
        with pytest.raises(UpstreamError, match="too long"):
            await BackendClient(answer_bytes=69_999).http(spec, b"GET", b"/", timeout_s=30)
        answer = await BackendClient(answer_bytes=70_000).http(spec, b"GET", b"/", timeout_s=30)
        assert len(answer.body) == 70_000


@pytest.mark.parametrize(
    "answer",
    [reply(bytes(70_000)), b"SSH-2.0\r\n\r\n", reply(bytes(9))[:-1], b""],
    ids=["too long", "no HTTP", "cut off", "nothing"],
)
@pytest.mark.parametrize("protocol", AppProtocol)
async def test_an_answer_that_is_given_up_is_freed_without_the_collector(
    answer: bytes, protocol: AppProtocol
) -> None:
    async def say(peer: Peer) -> None:
        await peer.send(answer)

    async def give_up(spec: BackendSpec) -> None:
        backend_client = BackendClient(answer_bytes=69_999)
        is_http = protocol is AppProtocol.HTTP
        ask = (
            backend_client.http(spec, b"GET", b"/", timeout_s=30)
            if is_http
            else backend_client.grpc(spec, b"/s/M", timeout_s=30)
        )
        with pytest.raises(UpstreamError):
            await ask

    async with scripted_backend(say) as backend:
        gc.collect()
        gc.disable()
        try:
            await give_up(spec_of(backend.target, protocol))
            await asyncio.sleep(0)  # the connection is closed
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = {type(each) for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not kinds & {HttpClientCall, GrpcClientCall}


async def test_uploads_to_many_backends_take_turns() -> None:
    turns, piece, pieces = _Turns(), 256 * 1024, 8
    sent = [0] * 20

    def sender(number: int) -> Callable[[], int]:
        def send() -> int:
            sent[number] += 1
            if sent[number] < pieces:
                turns.wait(send)
            return piece

        return send

    for number in range(len(sent)):
        turns.wait(sender(number))
    counts = [0]
    while counts[-1] < len(sent) * pieces:
        await asyncio.sleep(0)
        counts.append(sum(sent))
        assert max(sent) - min(sent) <= 1
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) == 2**20 // piece
