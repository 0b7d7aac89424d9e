"""A client's connection: preface, order of streams, limits, idle time and shutdown."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hpack import Encoder, NeverIndexedHeaderTuple

from lb.domain.outcome import Reason
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fakes.work import instructions
from tests.wire.frames import (
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HANG_PATH,
    RESPONSE_FIELDS,
    call,
    data,
    headers,
    message,
    ping,
    request_fields,
    rst,
    settings,
)


def ended(client: Side) -> bool:
    """Whether the connection was closed, or our side of it ended."""
    return client.transport.eof or client.transport.is_closing()


async def test_an_idle_client_is_sent_away_and_a_busy_one_stays() -> None:
    relay = PaperRelay(options=Http2Options(head_timeout_s=5.0, client_idle_s=60.0))
    relay.backend()
    idle, busy = relay.client(), relay.client()
    busy.sends(call(1))
    relay.loop.advance(70.0)
    relay.relay.flush()
    assert GOAWAY in [frame.kind for frame in idle.gets()]
    assert ended(idle)
    assert not ended(busy)


async def test_client_is_named_by_its_address() -> None:
    relay = PaperRelay()
    relay.backend()
    relay.client().sends(call(1))
    relay.client().sends(settings({}))
    (server, _) = sorted(relay.relay.servers, key=lambda connection: -len(connection.streams))
    assert server.client.name == "127.0.0.1:4711"


# Floods


@pytest.mark.parametrize(
    ("deadline", "age_s", "begun", "counts"),
    [
        (b"", 0.0, False, True),
        (b"", 0.99, False, True),
        (b"", 1.0, False, False),
        (b"", 0.0, True, False),
        (b"500m", 0.24, False, True),
        (b"500m", 0.26, False, False),
        (b"30m", 0.016, False, False),
        (b"12m", 0.0065, False, False),
        (b"2m", 0.0015, False, False),
        (b"2m", 0.0005, False, True),
        (b"1u", 0.0, False, True),
    ],
    ids=[
        "at once",
        "young",
        "old",
        "answered",
        "early",
        "due",
        "short",
        "shorter",
        "tiny",
        "tiny and early",
        "with its head",
    ],
)
async def test_only_resets_that_were_meant_from_the_start_are_a_flood(
    deadline: bytes, age_s: float, begun: bool, counts: bool
) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    head = request_fields(*([(b"grpc-timeout", deadline)] if deadline else []), path=HANG_PATH)
    streams = range(1, 601, 2)
    client.sends(*(headers(stream, head) for stream in streams))
    if begun:
        backend.sends(*(headers(stream, RESPONSE_FIELDS) for stream in streams))
    relay.loop.advance(age_s)
    client.sends(*map(rst, streams))
    last = client.gets()[-1:]
    cut = [(frame.kind, frame.code) for frame in last if frame.kind == GOAWAY]
    assert cut == ([(GOAWAY, ENHANCE_YOUR_CALM)] if counts else [])
    assert relay.is_clean()


async def test_a_flood_is_counted_once_and_its_calls_are_named_after_it() -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(call(1), call(3), ping() * 201)
    assert ended(client)
    traffic = relay.finished.meter.traffic[1]
    assert traffic.connection_errors == {Reason.FLOOD: 1}
    assert traffic.reasons == {Reason.FLOOD: 2}
    assert relay.is_clean()


def _coded(count: int) -> bytes:
    """A head of a call that we answer, with 27 KB in Huffman coding."""
    more = [NeverIndexedHeaderTuple(b"x%d" % at, b"a" * 300) for at in range(count)]
    path = b"/inference.GRPCInferenceService/ServerLive"
    return bytes(Encoder().encode([*map(_literal, request_fields(path=path)), *more]))


def _literal(field: tuple[bytes, bytes]) -> NeverIndexedHeaderTuple:
    return NeverIndexedHeaderTuple(*field)


async def test_heads_in_huffman_coding_of_many_connections_share_one_iteration() -> None:
    relay = PaperRelay()
    clients = [relay.client() for _ in range(20)]
    for client in clients:
        client.connection.data_received(headers(1, _coded(90), end=True))
    begun = [sum(client.facts.last_peer_stream for client in clients)]
    assert not clients[-1].transport.reading
    while begun[-1] < 20:
        await asyncio.sleep(0)
        begun.append(sum(client.facts.last_peer_stream for client in clients))
    assert max(after - before for before, after in itertools.pairwise([0, *begun])) <= 2


async def test_a_head_that_takes_the_common_way_is_decoded_once() -> None:
    client = PaperRelay().client()
    head, body = _coded(90), data(1, message(), end=True)
    apart = instructions(
        lambda: (
            client.connection.data_received(headers(1, head)),
            client.connection.data_received(body),
        )
    )
    client = PaperRelay().client()
    together = instructions(lambda: client.connection.data_received(headers(1, head) + body))
    assert together <= 1.1 * apart
