"""Which protocol a connection speaks, from its first bytes."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from lb.net.connection_limiter import ConnectionLimiter
from lb.proxy.sniff import Sniffer, SniffProtocol
from lb.wire.http2.frames import PREFACE
from tests.fakes.clock import FakeLoop
from tests.fakes.transport import FakeTransport

TIMEOUT_S = 10.0


class Noting(asyncio.Protocol):
    """What is handed over to it."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data


class Parts(NamedTuple):
    """A connection that has just been made."""

    sniff: SniffProtocol
    transport: FakeTransport
    loop: FakeLoop
    made: list[tuple[str, Noting]]


def connect() -> Parts:
    loop, transport = FakeLoop(), FakeTransport()
    made: list[tuple[str, Noting]] = []

    def maker(name: str) -> Noting:
        made.append((name, Noting()))
        return made[-1][1]

    sniff = Sniffer(lambda: maker("1"), lambda: maker("2"), loop.wheel(), TIMEOUT_S)()
    sniff.connection_made(transport)
    return Parts(sniff, transport, loop, made)


@pytest.mark.parametrize(
    ("data", "name", "decisive"),
    [
        (PREFACE + b"more", "2", 14),
        (b"POST /v2 HTTP/1.1\r\n\r\n", "1", 2),
        (b"GET / HTTP/1.1\r\n\r\n", "1", 1),
        (b"PRI * HTTP/1.1\r\n\r\n", "1", 12),
        (b"\x16\x03\x01", "1", 1),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 100])
def test_the_first_bytes_decide_and_none_is_lost(
    data: bytes, name: str, decisive: int, step: int
) -> None:
    parts = connect()
    for start in range(0, len(data), step):
        stop = min(start + step, len(data))
        receiver = parts.made[0][1] if parts.made else parts.sniff
        receiver.data_received(data[start:stop])
        assert bool(parts.made) is (stop >= decisive)
    ((found, protocol),) = parts.made
    assert (found, protocol.data) == (name, data)
    assert protocol.transport is parts.transport
    assert parts.transport.get_protocol() is protocol
    assert parts.loop.pending <= 1
    parts.loop.advance(2 * TIMEOUT_S)
    assert not parts.transport.aborted


def test_a_client_that_says_nothing_decisive_is_cut() -> None:
    parts = connect()
    parts.sniff.data_received(PREFACE[:5])
    parts.loop.advance(TIMEOUT_S + 1)
    assert parts.transport.aborted
    assert parts.made == []


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    parts = connect()
    parts.sniff.data_received(b"PRI")
    parts.sniff.connection_lost(None)
    parts.sniff.data_received(b"late")
    parts.loop.advance(TIMEOUT_S + 1)
    assert not parts.transport.aborted
    assert parts.made == []


def test_a_client_may_not_wait_with_more_connections_than_it_may_have() -> None:
    loop = FakeLoop()
    sniffer = Sniffer(Noting, Noting, loop.wheel(), TIMEOUT_S)
    sniffer.connection_limiter = ConnectionLimiter(1)
    crowded: list[int] = []
    sniffer.on_crowded = lambda: crowded.append(1)
    transports = [FakeTransport(), FakeTransport(), FakeTransport()]
    first, second, third = (sniffer() for _ in transports)
    for sniff, transport in ((first, transports[0]), (second, transports[1])):
        sniff.connection_made(transport)
    assert [transport.aborted for transport in transports] == [False, True, False]
    assert len(crowded) == 1
    second.connection_lost(None)
    first.data_received(b"GET / HTTP/1.1\r\n\r\n")  # from here on its protocol counts it
    assert (len(sniffer.connection_limiter), len(sniffer)) == (0, 0)
    third.connection_made(transports[2])
    third.connection_lost(None)
    assert (len(sniffer.connection_limiter), len(sniffer), len(crowded)) == (0, 0, 1)
