"""What neither a client nor a Triton gets through us, however it is spelled or cut."""

from __future__ import annotations

import asyncio

import pytest

from lb.domain.outcome import Reason
from tests.fakes.relay import running_http1_relay
from tests.wire.http1 import Peer, Script, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True

_INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
_LEAK = b'{"error":"no room in triton_python_backend_shm_region_7f-a1 for it"}'
_HIDDEN = b'{"error":"no room in %b for it"}' % (b"*" * 38)


def _serving(wire: bytes, cut: int) -> Script:
    """Answers every request with these bytes, cut at one place."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(wire[:cut])
            if cut < len(wire):
                await asyncio.sleep(0.02)
                await peer.send(wire[cut:])

    return script


_STATUS = b"500 Internal Server Error"
_CHUNKED = b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("cut", [b"HTTP", b"f-a1", b"for"], ids=["whole", "in the name", "after"])
@pytest.mark.parametrize(
    "wire",
    [reply(_LEAK, status=_STATUS), _CHUNKED % (len(_LEAK), _LEAK)],
    ids=["length", "chunks"],
)
async def test_names_are_masked_in_errors(wire: bytes, cut: bytes) -> None:
    async with (
        scripted_backend(_serving(wire, wire.index(cut) or len(wire))) as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            await client.send(_INFER)
            answer = await client.answer("POST")
            assert answer.complete
            assert answer.status in (400, 500)
            assert answer.body == _HIDDEN
        assert backend.connections == 1
        assert relay.finished.records[0].bytes_out == len(_LEAK)


async def test_name_cut_inside_its_prefix_shows_no_secret() -> None:
    wire = reply(_LEAK, status=_STATUS)
    async with (
        scripted_backend(_serving(wire, wire.index(b"backend"))) as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(_INFER)
        answer = await client.answer("POST")
        assert len(answer.body) == len(_LEAK)
        assert b"7f-a1" not in answer.body
        assert answer.body.endswith(b' for it"}')


async def test_names_are_masked_in_a_stream_of_events_but_not_in_results() -> None:
    events = b"data: %b\n\n" % _LEAK
    answer_of = {
        b"generate_stream": b"data: %b\n\n" % _HIDDEN,
        b"generate": events,
    }

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))

    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        for route, expected in answer_of.items():
            await client.send(_INFER.replace(b"infer", route))
            assert (await client.answer("POST")).body == expected


@pytest.mark.parametrize("step", [1, 0])
async def test_nothing_of_a_registration_of_a_reserved_region_arrives(step: int) -> None:
    body = b'{"key":"/triton_python_backend_shm_region_1","offset":0,"byte_size":64}'
    line = b"POST /v2/systemsharedmemory/region/r/register HTTP/1.1\r\nHost: a\r\n"
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        asked = relay.record_fan_out(status=200)
        await client.send(
            line + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            step=step,
        )
        answer = await client.answer("POST")
        assert answer.status == 400
        assert answer.body == b'{"error": "shared memory region has a reserved name"}'
        assert answer.fields[b"connection"] == b"close"
        assert not asked.questions
        await eventually(relay.is_clean)
        record = relay.finished.records[0]
        assert record.reason is Reason.BAD_REQUEST
        assert record.operation.name == "SystemSharedMemoryRegister"
        assert relay.outcomes.seen == []


@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
async def test_registration_arrives_whole_once_it_is_complete(expects: bytes) -> None:
    body = b'{"key":"/mine","offset":0,"byte_size":64}'
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        asked = relay.record_fan_out(status=200)
        await client.send(
            b"POST /v2/systemsharedmemory/region/r/register HTTP/1.1\r\nHost: a\r\n"
            + b"Content-Length: %d\r\n%b\r\n" % (len(body), expects)
        )
        if expects:
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body[:20], step=1)
        assert not asked.questions
        await client.send(body[20:], step=1)
        assert (await client.answer("POST")).status == 200
        assert [question.body for question in asked.questions] == [body]
        await eventually(relay.is_clean)


async def test_redirect_and_disguised_fields_do_not_arrive() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(
            _INFER.replace(
                b"\r\n\r\n",
                b"\r\nX-Vertex-AI-Triton-Redirect: v2/logging\r\nContent_Length: 9\r\nX_B: 1\r\n"
                b"x-forwarded_for: 6.6.6.6\r\ninference_header_content_length: 1\r\n"
                b"X_Vertex_AI_Triton_Redirect: v2\r\n\r\n",
            )
        )
        assert (await client.answer("POST")).status == 200
    assert backend.requests[0].head == (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nX_B: 1\r\n\r\n"
    )


async def test_options_of_the_server_need_no_backend() -> None:
    async with running_http1_relay() as relay, raw_client(relay.port) as client:
        for _ in range(2):
            await client.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await client.answer("OPTIONS")
            assert (answer.status, answer.body) == (200, b"")
            assert b"POST" in answer.fields[b"allow"]
        assert relay.finished.records[0].operation.name == "ServerOptions"


async def test_chunk_storm_arrives_in_few_chunks() -> None:
    count = 200_000
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        await client.send(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await client.send(b"1\r\nx\r\n" * count + b"0\r\n\r\n")
        assert (await client.answer("POST")).status == 200
    received = backend.requests[0]
    assert received.body == b"x" * count
    assert received.chunks <= 64
