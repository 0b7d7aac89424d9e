"""What one backend says it cannot serve is asked of another, and the client sees one answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import (
    DATA,
    HEADERS,
    RST_STREAM,
    answer,
    call,
    data,
    goaway,
    headers,
    request_fields,
)

_STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def _refusal(stream: int, text: bytes, status: bytes = b"14") -> bytes:
    return headers(
        stream,
        [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", status),
            (b"grpc-message", text),
        ],
        end=True,
    )


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"Request for unknown model: 'm' is not found", b"5"),
        (b"Request for unknown model: 'm' version 1 is not at ready state", b"14"),
        (b"Exceeds maximum queue size", b"14"),
        (b"Server%20exiting", b"14"),
        (b"Unable to find shared memory region: 'r'", b"5"),
    ],
)
async def test_a_refusal_goes_to_the_next_backend(text: bytes, status: bytes) -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    told: list[tuple[str, bytes]] = []
    relay.misplaced = lambda backend, model, version: told.append((backend.name, model))
    client.sends(call(1))
    assert first.gets()
    first.sends(_refusal(1, text, status))
    assert not client.gets()
    assert second.gets()[0].kind == HEADERS
    second.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    assert relay.outcomes.seen == [("b0", Outcome.NOT_HERE)]
    assert told == ([("b0", b"m")] if b"unknown model" in text else [])
    assert relay.is_clean()


async def test_the_last_refusal_is_the_answer() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(_refusal(1, b"Exceeds maximum queue size"))
    second.sends(_refusal(1, b"Exceeds maximum queue size"))
    (head,) = client.gets()
    assert b"Exceeds maximum queue size" in head.payload
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts, record.reason) == (14, 2, None)
    assert relay.is_clean()


async def test_what_a_broken_device_fails_goes_to_another_a_little_later() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    assert first.gets()
    first.sends(_refusal(1, b"CUDA error: an illegal memory access was encountered", b"13"))
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert second.gets()[0].kind == HEADERS
    second.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    assert relay.outcomes.seen == [("b0", Outcome.BROKEN)]
    assert relay.is_clean()


_BEFORE = (b"CANCELLED", b"1")
"""Comes from gRPC's library also just before it sends GOAWAY."""
_AFTER = [(b"", b"1"), (b"Cancelling all calls", b"14")]


@pytest.mark.parametrize(
    ("frames", "text", "status"),
    [(b"", *_BEFORE), *((goaway(2**31 - 1), *each) for each in (_BEFORE, *_AFTER))],
)
async def test_what_a_server_cancels_that_shuts_down_goes_to_another(
    frames: bytes, text: bytes, status: bytes
) -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(frames + _refusal(1, text, status))
    assert not client.gets()
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert second.gets()[0].kind == HEADERS
    second.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    assert relay.outcomes.seen == [("b0", Outcome.CUT_OFF)]
    assert relay.is_clean()


@pytest.mark.parametrize(("text", "status"), _AFTER)
async def test_what_a_server_cancels_that_goes_on_is_the_clients(
    text: bytes, status: bytes
) -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(_refusal(1, text, status))
    assert not second.gets()
    assert client.gets()
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (int(status), None)
    assert relay.is_clean()


async def test_what_must_not_run_twice_is_not_repeated_although_its_server_cancelled_it() -> None:
    relay = PaperRelay(backends=2)
    relay.run_once(b"m")
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(goaway(2**31 - 1) + _refusal(1, b"CANCELLED", b"1"))
    assert not second.gets()
    assert client.gets()
    assert relay.finished.records[0].grpc_status == 1
    assert relay.is_clean()


@pytest.mark.parametrize(
    "text", [b"This protocol is restricted, expecting header 'k'", b"explicit model load", b""]
)
async def test_other_errors_are_the_clients(text: bytes) -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(_refusal(1, text))
    assert not second.gets()
    assert client.gets()
    assert relay.is_clean()


async def test_an_unknown_model_that_nobody_has_is_asked_for_once() -> None:
    relay = PaperRelay(backends=2)
    relay.ref.publish(replace(relay.ref.current, routes={}, knows_all=True))
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.sends(_refusal(1, b"Request for unknown model: 'm' is not found", b"5"))
    assert not second.gets()
    assert client.gets()
    assert relay.is_clean()


@pytest.mark.parametrize("kept", [True, False])
async def test_a_stream_that_is_refused_goes_to_another_backend_if_it_was_kept(kept: bool) -> None:
    relay = PaperRelay(backends=2, options=Http2Options(retained_size=100 if kept else 5))
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(headers(1, request_fields(path=_STREAM)))
    client.sends(data(1, b"\0\0\0\0\3\x0a\1m"))
    first.sends(_refusal(1, b"Server exiting"))
    if kept:
        assert [frame.kind for frame in second.gets()] == [HEADERS, DATA]
        second.sends(_refusal(1, b"Server exiting"))
    assert HEADERS not in [frame.kind for frame in second.gets()]
    kinds = [frame.kind for frame in client.gets()]
    assert kinds == [HEADERS, RST_STREAM]
    assert relay.is_clean()
