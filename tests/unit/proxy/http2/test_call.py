"""One call from its head to its end, whoever ends it."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from lb.domain.outcome import Reason
from lb.proxy.http2.options import Http2Options
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.fields import encode_field
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import (
    DATA,
    HEADERS,
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
)


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


WHOLE = named(b"resnet", bytes(50))
BEGUN = headers(1, request_fields())
TRAILERS = headers(1, [(b"x", b"y")], end=True)
CUT_SHORT = {
    "in one read": [call(1, WHOLE[:-4])],
    "within the prefix": [call(1, WHOLE[:3])],
    "within the prefix, with trailers": [BEGUN, data(1, WHOLE[:3]), TRAILERS],
    "after it was sent": [BEGUN, data(1, WHOLE[:20]), data(1, WHOLE[20:-4]), data(1, end=True)],
    "after it was sent, with trailers": [BEGUN, data(1, WHOLE[:-4]), TRAILERS],
    "in crumbs": [BEGUN, data(1, WHOLE[:2]), data(1, WHOLE[2:4]), data(1, WHOLE[4:7], end=True)],
}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", CUT_SHORT)
async def test_a_call_that_ends_within_its_message_is_answered_at_once(
    name: str, *, is_known: bool
) -> None:
    """Some servers wait for the rest of the message until the client is gone."""
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    if is_known:
        relay.client().sends(call(1, WHOLE))
        backend.sends(answer(1))
        backend.gets()
        relay.finished.records.clear()
    for part in CUT_SHORT[name]:
        client.sends(part)
    (head,) = client.gets()
    assert head.payload.endswith(encode_field(b"grpc-message", b"Unable to parse request"))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (GrpcStatus.INTERNAL, Reason.BAD_REQUEST)
    assert [frame.kind for frame in backend.gets() if frame.kind != DATA] == (
        [HEADERS, RST_STREAM] if "sent" in name else []
    )
    assert relay.is_clean()


@pytest.mark.parametrize(
    "parts",
    [[headers(1, request_fields(), end=True)], [call(1, b"")], [BEGUN, data(1), TRAILERS]],
    ids=["head", "data", "trailers"],
)
async def test_a_call_without_any_message_is_passed_on(parts: list[bytes]) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    for part in parts:
        client.sends(part)
    assert backend.gets()[-1].ends_stream
    backend.sends(answer(1))
    assert client.gets()
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


_LONG_ID = b"\x1a\xdc\x0b" + bytes(1500)
"""The field `id` of a request."""


@pytest.mark.parametrize(
    "body", [_LONG_ID + b"\x0a\x01m", b"\x0a\x01m" + _LONG_ID], ids=["the model", "the rows"]
)
async def test_what_comes_in_crumbs_is_put_together_seldom_while_more_is_awaited(
    body: bytes,
) -> None:
    relay = PaperRelay()
    relay.split(b"m", 8)
    relay.backend()
    client = relay.client()
    request = message(body + bytes(100))
    crumbs = [request[at : at + 5] for at in range(0, 1500, 5)]
    sent = b"".join((headers(1, request_fields()), *(data(1, crumb) for crumb in crumbs)))
    joins = 0

    def count(_frame: FrameType, event: str, called: object) -> None:
        nonlocal joins
        joins += event == "c_call" and getattr(called, "__name__", "") == "join"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        client.sends(sent)
    finally:
        sys.setprofile(before)
    assert relay.open_requests == 1
    assert relay.in_flight == 0, "more is awaited"
    assert joins < len(crumbs) // 4
