"""How an attempt of a call ends, and whether another follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.relay import snapshot_of
from tests.wire.frames import (
    DATA,
    HEADERS,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    answer,
    call,
    data,
    headers,
    message,
)


def hang(relay: PaperRelay, number: int) -> None:
    """A backend is silent, and the pool is published without it, unless there is no other."""
    port = relay.backends[number].ports[1]
    assert port is not None
    port.is_hung = True
    rest = tuple(each for each in relay.backends if each is not relay.backends[number])
    snapshot = relay.ref.current
    relay.ref.publish(replace(snapshot, placements=snapshot_of(rest).placements))
    relay.relay.flush()


# A silent backend


async def test_what_a_hung_backend_has_goes_elsewhere() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(), relay.backend(1), relay.client()
    client.sends(call(1))
    first.gets()
    hang(relay, 0)
    assert not first.connection.streams
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert [frame.kind for frame in second.gets()] == [HEADERS, DATA]
    second.sends(answer(1))
    assert client.gets()
    assert relay.outcomes.seen == [("b0", Outcome.STALLED)]
    assert relay.is_clean()


async def test_what_waits_for_a_connection_to_a_hung_backend_goes_elsewhere_at_once() -> None:
    relay = PaperRelay(backends=2)
    client = relay.client()
    client.sends(call(1))
    second = relay.backend(1)
    hang(relay, 0)
    assert [frame.kind for frame in second.gets()] == [HEADERS, DATA]
    second.sends(answer(1))
    assert client.gets()
    await relay.tasks.aclose()
    assert relay.is_clean()


async def test_what_has_begun_or_has_nowhere_to_go_waits_for_a_hung_backend() -> None:
    for count, begun in ((2, True), (1, False)):
        relay = PaperRelay(backends=count)
        backend, client = relay.backend(), relay.client()
        client.sends(call(1))
        backend.gets()
        if begun:
            backend.sends(headers(1, RESPONSE_FIELDS), data(1, message()))
        hang(relay, 0)
        relay.loop.advance(0.1)
        assert backend.gets() == []
        whole = answer(1)
        backend.sends(headers(1, OK_TRAILERS, end=True) if begun else whole)
        assert client.gets()
        assert relay.finished.records[0].attempts == 1
        assert relay.is_clean()


async def test_an_attempt_that_is_late_goes_on_where_there_is_nobody_else() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.gets()
    relay.relay.under_way()[0].attempt_late()
    relay.relay.flush()
    assert backend.gets() == []
    backend.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 1)
    assert relay.relay.under_way() == []


# Responses that break off


@pytest.mark.parametrize("begun", [False, True])
async def test_a_second_head_ends_the_attempt_and_another_follows_if_nothing_went_out(
    begun: bool,
) -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(), relay.backend(1), relay.client()
    client.sends(call(1))
    first.gets()
    head = headers(1, RESPONSE_FIELDS)
    first.sends(head, data(1, message()) if begun else b"", head)
    relay.loop.advance(0.1)
    relay.relay.flush()
    assert first.transport.is_closing()
    assert relay.outcomes.seen == [("b0", Outcome.PROTOCOL_ERROR)]
    if begun:
        *_, trailers = client.gets()
        assert trailers.ends_stream, "the message was whole"
        assert b"broke the protocol" in trailers.payload
        assert second.gets() == []
    else:
        assert [frame.kind for frame in second.gets()] == [HEADERS, DATA]
        second.sends(answer(1))
        assert [frame.kind for frame in client.gets()] == [HEADERS, DATA, HEADERS]
    assert relay.is_clean()


async def test_an_error_after_a_part_of_a_message_goes_to_the_client_with_that_part() -> None:
    relay = PaperRelay(backends=2)
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.gets()
    trailers = headers(1, ((b"grpc-status", b"13"), (b"grpc-message", b"broken")), end=True)
    backend.sends(headers(1, RESPONSE_FIELDS), data(1, message()[:3]), trailers)
    head, part, end = client.gets()
    assert (head.kind, part.kind, end.kind) == (HEADERS, DATA, HEADERS)
    assert part.payload == message()[:3]
    assert end.ends_stream
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (13, 1)
    assert relay.is_clean()
