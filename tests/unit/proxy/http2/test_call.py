"""One call from its head to its end, whoever ends it."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Reason
from lb.proxy.http2.relay import Http2Options
from lb.wire.grpc.status import GrpcStatus
from tests.fakes.frames import (
    CANCEL,
    DATA,
    HEADERS,
    NO_ERROR,
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    FieldPair,
    answer,
    call,
    data,
    headers,
    message,
    named,
    request_fields,
    rst,
)
from tests.fakes.links import PaperRelay

OTHER = b"/other.Service/Call"


@pytest.mark.parametrize("whole", [True, False])
async def test_the_model_is_read_from_the_message(whole: bool) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    body = named(b"resnet", bytes(50))
    if whole:
        client.sends(call(1, body))
    else:
        client.sends(headers(1, request_fields()))
        for byte in body:
            client.sends(data(1, bytes((byte,))))
        assert b"".join(f.payload for f in backend.gets() if f.kind == DATA) == body
        client.sends(data(1, b"", end=True))
    backend.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.model, record.bytes_in, record.grpc_status) == (b"resnet", len(body), 0)
    assert relay.is_clean()


async def test_the_facts_of_a_call_are_noted() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1, None, (b"x-request-id", b"r-7")))
    relay.loop.advance(0.25)
    backend.sends(answer(1, message(b"abc")))
    (record,) = relay.finished.records
    assert (record.request_id, record.operation.name) == (b"r-7", "ModelInfer")
    assert (record.status, record.bytes_out, record.attempts) == (200, 8, 1)
    assert record.ended_at - record.started_at == pytest.approx(0.25)
    assert record.backend is relay.backends[0]
    port = relay.backends[0].ports[1]
    assert port is not None
    assert (port.codes, port.bytes_sent, port.bytes_received) == ({0: 1}, len(named()), 8)


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ([(b"grpc-timeout", b"soon")], 13, Reason.BAD_REQUEST),
        ([(b"grpc-timeout", b"0S")], 4, Reason.DEADLINE),
        ([(b"x-large", b"x" * 2000)], 8, Reason.HEAD_TOO_LARGE),
        ([(b"x-many", b"")] * 30, 8, Reason.HEAD_TOO_LARGE),
    ],
)
async def test_bad_heads_are_answered_and_reach_no_backend(
    fields: list[FieldPair], status: int, reason: Reason
) -> None:
    """A malformed and a passed timeout; metadata too large and too much."""
    relay = PaperRelay(options=Http2Options(head_size=2000, fields=20))
    backend, client = relay.backend(), relay.client()
    client.sends(call(1, None, *fields))
    (head, *rest) = client.gets()
    assert b"grpc-status%c%d" % (len(str(status)), status) in head.payload
    assert [frame.kind for frame in rest] in ([], [RST_STREAM])
    assert backend.gets() == []
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (status, reason)
    assert relay.is_clean()


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        ({b":method": b"GET"}, b"405"),
        ({b"content-type": b"application/json"}, b"415"),
    ],
)
async def test_what_is_not_grpc_is_answered_in_http(
    pairs: dict[bytes, bytes], status: bytes
) -> None:
    """A method other than POST, another content-type."""
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    fields = list((dict(request_fields()) | pairs).items())
    client.sends(headers(1, fields, end=True))
    (head,) = client.gets()
    assert b":status\x03" + status in head.payload
    assert head.ends_stream
    assert b"grpc-status" not in head.payload
    assert backend.gets() == []


@pytest.mark.parametrize("length", [b"3", b"9999"])
async def test_a_length_that_lies_is_told_to_the_client(length: bytes) -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(call(1, None, (b"content-length", length)))
    (head,) = client.gets()
    assert b"grpc-status\x0213" in head.payload
    assert b"content-length differs from the data" in head.payload
    assert head.ends_stream
    assert relay.is_clean()


async def test_no_backend_is_unavailable() -> None:
    relay = PaperRelay(backends=0)
    client = relay.client()
    client.sends(call(1))
    (head,) = client.gets()
    assert b"grpc-status\x0214" in head.payload
    assert relay.finished.records[0].reason is Reason.NO_BACKEND


async def test_large_messages_are_refused_by_their_prefix() -> None:
    relay = PaperRelay(options=Http2Options(message_size=1000))
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields(path=OTHER)), data(1, b"\0\0\0\3\xe9"))
    head, reset = client.gets()
    assert b"grpc-status\x018" in head.payload
    assert (reset.kind, reset.code) == (RST_STREAM, NO_ERROR)
    assert backend.gets()[-1].kind == RST_STREAM
    assert relay.is_clean()


@pytest.mark.parametrize("code", [CANCEL, REFUSED_STREAM])
async def test_a_reset_within_the_answer_is_passed_on(code: int) -> None:
    relay = PaperRelay(backends=2)
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, message()), rst(1, code))
    assert [(f.kind, f.code) for f in client.gets()[2:]] == [(RST_STREAM, code)]
    assert relay.is_clean()


async def test_an_early_answer_ends_the_upload() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields()), data(1, named()))
    backend.gets()
    backend.sends(headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"3")], end=True))
    head, reset = client.gets()
    assert (head.kind, reset.kind, reset.code) == (HEADERS, RST_STREAM, NO_ERROR)
    assert [(f.kind, f.code) for f in backend.gets()] == [(RST_STREAM, NO_ERROR)]
    client.sends(data(1, bytes(100), end=True))
    assert client.gets() == []
    assert relay.is_clean()


async def test_trailers_of_a_request_are_passed_on() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields()), data(1, named()))
    client.sends(headers(1, [(b"checksum", b"1")], end=True))
    *_, last = backend.gets()
    assert (last.kind, last.payload, last.ends_stream) == (HEADERS, b"\0\x08checksum\x011", True)


async def test_an_answer_without_a_status_counts_as_unknown() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), call(3))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, message(), end=True))
    backend.sends(headers(3, RESPONSE_FIELDS), headers(3, [(b"x", b"y")], end=True))
    port = relay.backends[0].ports[1]
    assert port is not None
    assert port.codes == {GrpcStatus.UNKNOWN: 2}
    assert relay.is_clean()


async def test_both_directions_stream_at_once() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    client.sends(headers(1, request_fields(path=path)), data(1, named()))
    backend.sends(headers(1, RESPONSE_FIELDS))
    for number in range(3):
        client.sends(data(1, message(b"%d" % number)))
        assert backend.gets()[-1].payload == message(b"%d" % number)
        backend.sends(data(1, message(b"%d" % number)))
        assert client.gets()[-1].payload == message(b"%d" % number)
    client.sends(data(1, b"", end=True))
    assert backend.gets()[-1].ends_stream
    backend.sends(headers(1, OK_TRAILERS, end=True))
    assert client.gets()[-1].ends_stream
    assert relay.is_clean()
