"""Backends whose answers say that all is well and contain no result: another one is asked, the
client is told, and passive health and the scheduler learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest

from lb.domain.model import ModelFacts
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.passive_health import Told
from tests.fakes.relay import RunningRelay, running_http1_relay, running_relay, snapshot_of
from tests.wire.frames import (
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    data,
    headers,
    message,
    rst,
)
from tests.wire.http1 import Peer as Http1Peer
from tests.wire.http1 import raw_client, reply, scripted_backend
from tests.wire.http2 import Peer, RawBackend, Script, raw_backend
from tests.wire.waiting import eventually

GOOD = message(pb.ModelInferResponse(model_name="m", id="good").SerializeToString())
LONG = message(bytes(200_000))

Reply = Callable[[int], bytes]


def head(stream: int) -> bytes:
    return headers(stream, RESPONSE_FIELDS)


def trailers(stream: int) -> bytes:
    return headers(stream, OK_TRAILERS, end=True)


def good(stream: int) -> bytes:
    return head(stream) + data(stream, GOOD) + trailers(stream)


UNUSABLE: dict[str, Reply] = {
    "only a status": lambda s: headers(s, [*RESPONSE_FIELDS, *OK_TRAILERS], end=True),
    "no message": lambda s: head(s) + trailers(s),
    "an empty frame": lambda s: head(s) + data(s, b"") + trailers(s),
    "half a prefix": lambda s: head(s) + data(s, GOOD[:3]) + trailers(s),
    "half a message": lambda s: head(s) + data(s, GOOD[:-2]) + trailers(s),
    "64 KiB missing": lambda s: head(s) + data(s, b"\0\0\1" + GOOD[3:]) + trailers(s),
    "half a message in frames": lambda s: (
        head(s) + data(s, GOOD[:4]) + data(s, GOOD[4:-2]) + trailers(s)
    ),
}
"""Of none of them anything has to go to the client."""
BEGUN: dict[str, Reply] = {
    "half a long message": lambda s: (
        head(s)
        + b"".join(data(s, LONG[at : at + 16_000]) for at in range(0, 96_000, 16_000))
        + trailers(s)
    ),
}


def answers(reply: Reply) -> Callable[[RawBackend], Script]:
    """Answer every request so, on any connection."""

    def make(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            while True:
                request = await peer.until(lambda frame: frame.ends_stream)
                peer.send(reply(request.stream))

        return play

    return make


async def ask(relay: RunningRelay, count: int) -> list[tuple[grpc.StatusCode, str]]:
    """Status and text, one after the other."""
    found = []
    request = pb.ModelInferRequest(model_name="m").SerializeToString()
    async with grpc_channel(relay.target) as channel:
        infer = channel.unary_unary(path("ModelInfer"))
        for _ in range(count):
            try:
                await asyncio.wait_for(infer(request), 20)
            except grpc.aio.AioRpcError as error:
                found.append((error.code(), error.details() or ""))
            else:
                found.append((grpc.StatusCode.OK, ""))
    return found


@pytest.mark.parametrize("name", UNUSABLE)
async def test_another_backend_is_asked_where_nothing_went_to_the_client(name: str) -> None:
    async with (
        raw_backend(answers(UNUSABLE[name])) as bad,
        raw_backend(answers(good)) as fine,
        running_relay(bad.target, fine.target) as relay,
    ):
        relay.judge = told = Told()
        for backend in relay.backends:
            backend.reports_due = 1000
        found = await ask(relay, 6)
        assert found == [(grpc.StatusCode.OK, "")] * 6
        assert told.failures["b0"] == sum(record.attempts - 1 for record in relay.finished.records)
        assert told.failures["b0"] > 0
        assert told.answers["b0"] == 0
        assert told.failures["b1"] == 0
        await relay.until_clean()


@pytest.mark.parametrize("name", [*UNUSABLE, *BEGUN])
async def test_the_client_is_told_whose_fault_it_is_where_no_other_backend_is_left(
    name: str,
) -> None:
    reply = (UNUSABLE | BEGUN)[name]
    async with raw_backend(answers(reply)) as bad, running_relay(bad.target) as relay:
        relay.judge = told = Told()
        relay.backends[0].reports_due = 1000
        for code, text in await ask(relay, 2):
            assert code is grpc.StatusCode.INTERNAL
            assert "backend b0 (grpc) broke the protocol" in text
            assert "without exactly one whole message" in text
        assert (told.answers["b0"], told.failures["b0"]) == (0, 2)
        assert {record.reason for record in relay.finished.records} == {Reason.UPSTREAM_PROTOCOL}
        port = relay.backends[0].ports[1]
        assert port is not None
        assert port.codes == {}
        assert port.failures == {"upstream_protocol": 2}
        await relay.until_clean()


@pytest.mark.parametrize("protocol_of", ["no message", "half a message", "refused"])
async def test_quick_bad_answers_do_not_attract_the_load(protocol_of: str) -> None:
    refused: dict[str, Reply] = {"refused": lambda stream: rst(stream, REFUSED_STREAM)}
    reply = (UNUSABLE | refused)[protocol_of]
    facts = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
    plan = QueuePlan(limits={}, default=Capacity(4, instances=4))
    routes = {b"m": ModelRoute(facts=facts, is_uniform=True, plan=plan)}
    async with (
        raw_backend(answers(reply)) as bad,
        raw_backend(answers(good)) as fine,
        running_relay(bad.target, fine.target) as relay,
    ):
        relay.judge = told = Told()
        relay.pool.publish(replace(snapshot_of(relay.backends), routes=routes))
        found = await ask(relay, 100)
        assert found.count((grpc.StatusCode.OK, "")) == 100
        # It is tried again as its penalty fades, and that is told to who judges backends.
        assert 0 < told.failures["b0"] < 40
        await relay.until_clean()


@pytest.mark.parametrize("status", [1, 3, 7, 12])
async def test_no_status_of_clients_mistakes_hides_a_backend_that_answers_everything_so(
    status: int,
) -> None:
    fields = [*RESPONSE_FIELDS, (b"grpc-status", b"%d" % status), (b"grpc-message", b"no")]
    async with (
        raw_backend(answers(lambda stream: headers(stream, fields, end=True))) as bad,
        running_relay(bad.target) as relay,
    ):
        relay.judge = told = Told()
        assert {code.value[0] for code, _ in await ask(relay, 5)} == {status}
        assert told.failures["b0"] == 5
        await relay.until_clean()


async def test_a_response_with_an_error_status_needs_no_message() -> None:
    status = [(b"grpc-status", b"3"), (b"grpc-message", b"invalid input")]
    async with (
        raw_backend(answers(lambda s: head(s) + headers(s, status, end=True))) as backend,
        running_relay(backend.target) as relay,
    ):
        relay.judge = told = Told()
        assert await ask(relay, 2) == [(grpc.StatusCode.INVALID_ARGUMENT, "invalid input")] * 2
        assert told.failures["b0"] == 0
        await relay.until_clean()


async def test_a_response_without_a_status_speaks_against_its_backend() -> None:
    async with (
        raw_backend(answers(lambda s: head(s) + data(s, GOOD, end=True))) as backend,
        running_relay(backend.target) as relay,
    ):
        relay.judge = told = Told()
        for code, _ in await ask(relay, 2):
            assert code is not grpc.StatusCode.OK
        assert told.failures["b0"] == 2
        await relay.until_clean()


_INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
RESULT = b'{"model_name":"m","outputs":[]}'
EMPTY = {
    "a length of 0": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status 204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


def says(answer: bytes) -> Callable[[Http1Peer], Awaitable[None]]:
    """Answer every request over HTTP/1.1 so."""

    async def script(peer: Http1Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return script


_OPEN_ENDED = b"HTTP/1.1 200 OK\r\n\r\n"
_IN_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Parts:
    """Answers every request with parts that the relay reads one by one, and then closes."""

    def __init__(self, *parts: bytes, resets: bool = False) -> None:
        self.parts = parts
        self.resets = resets
        self.relay: RunningRelay | None = None
        """Has this backend as its first one."""

    async def __call__(self, peer: Http1Peer) -> None:
        await peer.request()
        for part in self.parts:
            before = self._read_at()
            await peer.send(part)
            await eventually(lambda before=before: self._read_at() > before)  # type: ignore[misc]
        if self.resets:
            await peer.reset()

    def _read_at(self) -> float:
        assert self.relay is not None
        port = self.relay.backends[0].ports[0]
        assert port is not None
        return port.last_byte_at


EMPTY_SCRIPTS = {
    **{name: says(answer) for name, answer in EMPTY.items()},
    "the end of an HTTP/1.0 connection": Parts(b"HTTP/1.0 200 OK\r\n\r\n"),
    "the end of an HTTP/1.1 connection": Parts(_OPEN_ENDED),
    "no chunk, later": Parts(_IN_CHUNKS, b"0\r\n\r\n"),
}


@pytest.mark.parametrize("name", EMPTY_SCRIPTS)
@pytest.mark.parametrize("has_other", [True, False])
async def test_an_inference_over_http1_needs_a_body_as_well(name: str, has_other: bool) -> None:
    async with AsyncExitStack() as stack:
        script = EMPTY_SCRIPTS[name]
        backends = [await stack.enter_async_context(scripted_backend(script))]
        if has_other:
            fine = scripted_backend(says(reply(RESULT)))
            backends.append(await stack.enter_async_context(fine))
        targets = [backend.target for backend in backends]
        relay = await stack.enter_async_context(running_http1_relay(*targets))
        relay.judge = told = Told()
        if isinstance(script, Parts):
            script.relay = relay
        async with raw_client(relay.port) as client:
            for _ in range(4):
                await client.send(_INFER)
                answer = await client.answer("POST")
                assert answer.status == (200 if has_other else 502)
                assert answer.body == RESULT if has_other else b"without a body" in answer.body
        assert told.failures["b0"] > 0
        await eventually(relay.is_clean)


IN_PARTS = {
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n", b'{"a"', b": 1}"),
    "HTTP/1.1": (_OPEN_ENDED, b'{"a"', b": 1}"),
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n", b'{"a"', b": 1}"),
    "chunks": (_IN_CHUNKS, b'4\r\n{"a"\r\n', b"4\r\n: 1}\r\n", b"0\r\n\r\n"),
    "a chunk in parts": (_IN_CHUNKS, b"8\r\n", b'{"a": ', b"1}\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", IN_PARTS)
async def test_a_body_that_comes_after_its_head_is_relayed_whole(name: str) -> None:
    script = Parts(*IN_PARTS[name])
    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        script.relay = relay
        relay.judge = told = Told()
        relay.backends[0].reports_due = 1000
        async with raw_client(relay.port) as client:
            await client.send(_INFER)
            answer = await client.answer("POST")
            assert (answer.status, answer.body) == (200, b'{"a": 1}')
        await eventually(relay.is_clean)
        assert (told.answers["b0"], told.failures["b0"]) == (0, 1), "it has no outputs"


@pytest.mark.parametrize("result", [RESULT, b'{"a":"' + b"x" * 100 + b'"}'])
async def test_a_result_that_comes_in_parts_is_one(result: bytes) -> None:
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (result[:9], result[9:])]
    script = Parts(_IN_CHUNKS, *chunks, b"0\r\n\r\n")
    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        script.relay = relay
        relay.judge = told = Told()
        relay.backends[0].reports_due = 1000
        async with raw_client(relay.port) as client:
            await client.send(_INFER)
            assert (await client.answer("POST")).body == result
        await eventually(relay.is_clean)
        assert (told.answers["b0"], told.failures["b0"]) == (1, 0)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("head", [_IN_CHUNKS, b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"])
async def test_a_connection_that_is_lost_after_a_head_alone_has_not_answered(
    head: bytes, resets: bool
) -> None:
    script = Parts(head, resets=resets)
    async with (
        scripted_backend(script) as bad,
        scripted_backend(says(reply(RESULT))) as fine,
        running_http1_relay(bad.target, fine.target) as relay,
    ):
        script.relay = relay
        async with raw_client(relay.port) as client:
            for _ in range(4):
                await client.send(_INFER)
                assert (await client.answer("POST")).body == RESULT
        await eventually(relay.is_clean)


NO_RESULT = {
    "an object without outputs": (200, b"{}", reply(b"{}")),
    "an error": (200, b'{"error":"no"}', reply(b'{"error":"no"}')),
    "a page": (200, b"<html>" * 99, reply(b"<html>" * 99, b"Content-Type: Text/HTML; a=b\r\n")),
    "a redirection": (302, b"", reply(b"", b"Location: /x\r\n", status=b"302 Found")),
    "chunks": (200, b"{}", _IN_CHUNKS + b"2\r\n{}\r\n0\r\n\r\n"),
}
"""Status and body, and what the backend sends."""


@pytest.mark.parametrize("name", NO_RESULT)
@pytest.mark.parametrize("has_other", [True, False])
async def test_an_inference_over_http1_needs_a_result(name: str, has_other: bool) -> None:
    status, body, sent = NO_RESULT[name]
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted_backend(says(sent)))]
        if has_other:
            fine = scripted_backend(says(reply(RESULT)))
            backends.append(await stack.enter_async_context(fine))
        targets = [backend.target for backend in backends]
        relay = await stack.enter_async_context(running_http1_relay(*targets))
        relay.judge = told = Told()
        relay.backends[0].reports_due = 1000
        async with raw_client(relay.port) as client:
            for _ in range(4):
                await client.send(_INFER)
                answer = await client.answer("POST")
                assert (answer.status, answer.body) == (
                    (200, RESULT) if has_other else (status, body)
                )
        assert told.failures["b0"] > 0
        assert told.answers["b0"] == 0
        await eventually(relay.is_clean)


RESULTS = {
    "without outputs that were asked for": reply(RESULT),
    "compressed": reply(b"\x1f\x8b" + bytes(20), b"Content-Encoding: gzip\r\n"),
    "long": reply(b'{"a":"' + bytes(100) + b'"}'),
    "in chunks": _IN_CHUNKS + b"1f\r\n" + RESULT + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_short_result_over_http1_is_one(name: str) -> None:
    async with (
        scripted_backend(says(RESULTS[name])) as backend,
        running_http1_relay(backend.target) as relay,
    ):
        relay.judge = told = Told()
        relay.backends[0].reports_due = 1000
        async with raw_client(relay.port) as client:
            for _ in range(2):
                await client.send(_INFER)
                assert (await client.answer("POST")).status == 200
        assert (told.answers["b0"], told.failures["b0"]) == (2, 0)
        await eventually(relay.is_clean)


@pytest.mark.parametrize("name", ["an object without outputs", "a page", "a redirection"])
async def test_quick_answers_without_a_result_do_not_attract_the_load(name: str) -> None:
    _, _, answer = NO_RESULT[name]
    facts = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
    plan = QueuePlan(limits={}, default=Capacity(4, instances=4))
    routes = {b"m": ModelRoute(facts=facts, is_uniform=True, plan=plan)}
    async with (
        scripted_backend(says(answer)) as bad,
        scripted_backend(says(reply(RESULT))) as fine,
        running_http1_relay(bad.target, fine.target) as relay,
    ):
        relay.judge = told = Told()
        relay.pool.publish(replace(snapshot_of(relay.backends), routes=routes))
        async with raw_client(relay.port) as client:
            for _ in range(100):
                await client.send(_INFER)
                assert (await client.answer("POST")).body == RESULT
        assert 0 < told.failures["b0"] < 40
        await eventually(relay.is_clean)
