"""Streams whose peer takes nothing of what waits for it end; those that only wait their turn, or
for a backend, do not."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome, Reason
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay, Side
from tests.wire.frames import (
    DATA,
    INITIAL_WINDOW_SIZE,
    METHOD_PATH,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS_ACK,
    call,
    data,
    headers,
    message,
    request_fields,
    settings,
    window_update,
)

LIMIT_S = 20.0
OPTIONS = Http2Options(stream_stalled_s=LIMIT_S)
NO_WINDOW = settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK
STREAM_PATH = METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")


def waiting(greeting: bytes = NO_WINDOW, size: int = 1000) -> tuple[PaperRelay, Side, Side]:
    """A call whose answer of `size` bytes waits for the client."""
    relay = PaperRelay(options=OPTIONS)
    backend, client = relay.backend(), relay.client(greeting)
    client.sends(call(1))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, bytes(size)))
    client.gets()
    backend.gets()
    return relay, client, backend


def wait(relay: PaperRelay, seconds: float) -> None:
    relay.loop.advance(seconds)
    relay.relay.flush()


async def test_a_byte_now_and_then_is_enough() -> None:
    relay, client, _ = waiting()
    for _ in range(10):
        wait(relay, 0.9 * LIMIT_S)
        client.sends(window_update(1, 1))
    assert [frame.kind for frame in client.gets()] == 10 * [DATA]
    assert relay.dispatcher.open_exchanges == 1


async def test_streams_with_nothing_to_send_may_be_silent_for_ever() -> None:
    relay = PaperRelay(options=OPTIONS)
    backend, client = relay.backend(), relay.client(NO_WINDOW)
    client.sends(headers(1, request_fields(path=STREAM_PATH)))
    backend.sends(headers(1, RESPONSE_FIELDS))
    wait(relay, 100 * LIMIT_S)
    assert relay.dispatcher.open_exchanges == 1


async def test_a_stream_that_waits_for_its_turn_on_a_slow_connection_is_not_stalled() -> None:
    """The connection's window comes byte by byte, and all of it goes to the other stream."""
    relay = PaperRelay(options=OPTIONS)
    backend, client = (
        relay.backend(),
        relay.client(settings({INITIAL_WINDOW_SIZE: 2**20}) + SETTINGS_ACK),
    )
    client.sends(call(1), call(3))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, bytes(65_535)))
    backend.sends(data(1, bytes(5000)), headers(3, RESPONSE_FIELDS), data(3, bytes(100)))
    for _ in range(20):
        wait(relay, 0.3 * LIMIT_S)
        client.sends(window_update(0, 1))
    assert relay.dispatcher.open_exchanges == 2


async def test_streams_that_wait_for_a_connection_without_window_are_reset() -> None:
    relay = PaperRelay(options=OPTIONS)
    backend, client = relay.backend(), relay.client(settings({}) + SETTINGS_ACK)
    client.sends(call(1), call(3))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, bytes(65_535)), data(1, b"x"))
    backend.sends(headers(3, RESPONSE_FIELDS), data(3, message()))
    client.gets()
    wait(relay, 1.3 * LIMIT_S)
    assert [(f.kind, f.stream) for f in client.gets()] == [(RST_STREAM, 1), (RST_STREAM, 3)]
    assert relay.is_clean()


async def test_a_client_that_reads_slowly_stays() -> None:
    relay, client, backend = waiting(settings({}) + SETTINGS_ACK, 10)
    client.connection.pause_writing()
    client.transport.buffered = 300_000
    backend.sends(data(1, bytes(1000)))
    for _ in range(20):
        wait(relay, 0.5 * LIMIT_S)
        client.transport.buffered -= 1
    assert not client.transport.is_closing()
    assert relay.dispatcher.open_exchanges == 1


@pytest.mark.parametrize("full", [False, True], ids=["window", "socket"])
async def test_a_backend_that_takes_nothing_of_an_upload_is_given_up(full: bool) -> None:
    relay = PaperRelay(options=OPTIONS)
    backend, client = relay.backend(0, NO_WINDOW), relay.client()
    if full:
        backend.sends(settings({INITIAL_WINDOW_SIZE: 65_535}))
        backend.connection.pause_writing()
        backend.transport.buffered = 300_000
    client.sends(headers(1, request_fields(path=STREAM_PATH)), data(1, message(bytes(100_000))))
    wait(relay, 1.3 * LIMIT_S)
    assert backend.transport.aborted == full
    assert relay.outcomes.seen[0] == ("b0", Outcome.STALLED)
    assert relay.finished.records[0].reason is Reason.UPSTREAM_STALLED
    assert relay.is_clean()


async def test_there_may_be_no_limit() -> None:
    relay = PaperRelay(options=Http2Options(stream_stalled_s=0.0))
    backend, client = relay.backend(), relay.client(NO_WINDOW)
    client.sends(call(1))
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, bytes(1000)))
    wait(relay, 10_000.0)
    assert relay.dispatcher.open_exchanges == 1


@pytest.mark.parametrize("limit_s", [10 * LIMIT_S, 0.0])
async def test_a_longer_limit_is_that_of_streams_that_wait_already(limit_s: float) -> None:
    relay, _, _ = waiting()
    wait(relay, 0.5 * LIMIT_S)
    relay.relay.configure(Http2Options(stream_stalled_s=limit_s))
    wait(relay, 5 * LIMIT_S)
    assert relay.dispatcher.open_exchanges == 1


async def test_a_shorter_limit_is_that_of_connections_that_stand_already() -> None:
    relay, client, _ = waiting()
    client.sends(window_update(1, 1))
    relay.relay.configure(Http2Options(stream_stalled_s=0.1 * LIMIT_S))
    wait(relay, 0.5 * LIMIT_S)
    assert relay.dispatcher.open_exchanges == 0
