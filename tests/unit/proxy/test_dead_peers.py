"""Connections that are given up because nothing of what is sent over them arrives."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from math import inf
from typing import Any

import pytest

from lb.domain.backend import Address, Port
from lb.proxy.dead_peers import DeadPeerDetector

_NOW = 1000.0


class Socket:
    """One that says what the kernel knows."""

    family = socket.AF_INET

    def __init__(self, resent: int, waiting: int, sent_s: float, heard_s: float) -> None:
        info = bytearray(192)
        info[2] = resent
        struct.pack_into("=I", info, 24, waiting)
        struct.pack_into("=I", info, 44, int(sent_s * 1000))
        struct.pack_into("=I", info, 56, int(heard_s * 1000))
        self._info = bytes(info)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]


class Connection:
    """It owes an answer for so long; its port was heard from otherwise so long ago."""

    def __init__(self, sock: Any, *, owes_s: float = 3.0, port_heard_s: float = 1.0) -> None:
        self.transport: asyncio.Transport | None = asyncio.Transport({"socket": sock})
        self.port = Port(Address("127.0.0.1", 1))
        self.port.probed_at = _NOW - port_heard_s
        self.owes_since = _NOW - owes_s
        self.given_up = 0

    def unheard(self) -> None:
        self.given_up += 1
        self.transport = None


def dead(**more: float) -> Connection:
    """A request that was sent 3 s ago, and sent again at 0.2, 0.6, 1.4 and 2.6 s."""
    return Connection(Socket(4, 1, 0.4, 3.0), **more)


def scan(detector: DeadPeerDetector, now: float) -> None:
    for connection in detector.begin(now):
        detector.check(connection, now)
    detector.end()


def is_lost(*looks: Connection | Socket) -> bool:
    """Whether a connection is given up after scans with a second between them; what the kernel
    says may be another thing each time."""
    connection = next(each for each in looks if isinstance(each, Connection))
    detector = DeadPeerDetector(lambda: [connection] if connection.transport else [])
    for number, each in enumerate(looks, start=1):
        if isinstance(each, Socket):
            connection.transport = asyncio.Transport({"socket": each})
        scan(detector, _NOW + 0.05 - len(looks) + number)
    return connection.given_up > 0


def test_what_is_not_acknowledged_while_the_port_answers_otherwise_is_lost() -> None:
    assert is_lost(dead())


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        (Connection(Socket(0, 1, 3.0, 3.0)), "it was not sent again yet"),
        (Connection(Socket(4, 0, 0.4, 3.0)), "all is acknowledged: it computes"),
        (Connection(Socket(4, 1, 0.4, 1.5)), "something was acknowledged lately"),
        (Connection(Socket(4, 1, 0.01, 3.0)), "the acknowledgement may be on its way"),
        (dead(port_heard_s=5.0), "the port was not heard from since: all of it may be gone"),
        (dead(port_heard_s=0.1), "it may have come back after what was sent last"),
        (dead(owes_s=1.0), "the request is young; the connection was idle before"),
        (dead(owes_s=-inf), "it owes nothing"),
    ],
)
def test_everything_else_is_not_lost(connection: Connection, why: str) -> None:
    assert not is_lost(connection), why


def test_it_is_lost_once_something_was_sent_after_the_port_was_heard() -> None:
    connection = Connection(Socket(2, 1, 0.6, 1.5), owes_s=2.5, port_heard_s=1.2)
    assert not is_lost(connection, Socket(2, 1, 1.6, 2.5))
    connection = Connection(Socket(2, 1, 0.6, 1.5), owes_s=2.5, port_heard_s=1.2)
    assert is_lost(connection, Socket(3, 1, 0.3, 2.5))


def test_an_acknowledgement_in_between_begins_it_anew() -> None:
    connection = Connection(Socket(2, 1, 0.6, 1.5), owes_s=4.0, port_heard_s=2.5)
    assert not is_lost(connection, Socket(0, 0, 0.1, 0.1), Socket(3, 1, 0.3, 1.1))


@pytest.mark.parametrize("owes_s", [-inf, 0.1])
def test_it_is_lost_though_deadlines_have_ended_every_request_early(owes_s: float) -> None:
    connection = Connection(Socket(2, 1, 0.3, 60.0), owes_s=owes_s, port_heard_s=1.5)
    later = Socket(3, 1, 0.7, 61.0), Socket(3, 1, 1.7, 62.0), Socket(4, 1, 0.4, 63.0)
    assert is_lost(connection, *later)


def test_without_a_request_it_is_not_lost_before_the_silence_was_seen_for_long() -> None:
    connection = Connection(Socket(2, 1, 0.3, 60.0), owes_s=-inf, port_heard_s=0.8)
    assert not is_lost(connection, Socket(3, 1, 0.2, 61.0))


@pytest.mark.parametrize(
    "between", [(Socket(0, 0, 0.7, 0.7), Socket(2, 1, 0.2, 0.8)), (Socket(2, 1, 0.2, 0.7),) * 2]
)
def test_whoever_acknowledges_slowly_is_not_lost_without_a_request(
    between: tuple[Socket, Socket],
) -> None:
    connection = Connection(Socket(2, 1, 0.3, 2.0), owes_s=-inf, port_heard_s=0.5)
    assert not is_lost(connection, *between, Socket(3, 1, 0.2, 1.8))


def test_the_clock_of_the_kernel_may_be_some_milliseconds_off() -> None:
    connection = Connection(Socket(2, 1, 0.3, 1.0), owes_s=-inf, port_heard_s=1.5)
    later = Socket(3, 1, 0.7, 1.99), Socket(3, 1, 1.7, 2.98), Socket(4, 1, 0.4, 3.97)
    assert is_lost(connection, *later)


def test_traffic_on_other_connections_shows_that_the_port_answers() -> None:
    connection = dead(port_heard_s=100.0)
    connection.port.last_byte_at = _NOW - 1.0
    assert is_lost(connection)


def test_a_connection_that_is_closed_is_not_lost() -> None:
    connection = dead()
    connection.transport = None
    assert not is_lost(connection)


@pytest.mark.parametrize("family", [socket.AF_UNIX, None])
def test_where_nobody_can_tell_nothing_is_lost(family: int | None) -> None:
    sock = Socket(4, 1, 0.4, 3.0) if family else None
    if sock is not None:
        sock.family = socket.AF_UNIX
    assert not is_lost(Connection(sock))


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not is_lost(dead())


def test_one_that_was_given_up_is_counted_once() -> None:
    lost, alive = dead(), Connection(Socket(0, 0, 3.0, 3.0))
    connections = [lost, alive]
    detector = DeadPeerDetector(lambda: [each for each in connections if each.transport])
    for number in range(3):
        scan(detector, _NOW + number)
    assert (lost.given_up, alive.given_up, detector.count) == (1, 0, 1)


def test_it_is_wanted_each_second_until_no_connection_owes_anything() -> None:
    connections = [Connection(Socket(0, 0, 3.0, 3.0), owes_s=-inf)]
    detector = DeadPeerDetector(lambda: connections)
    assert (detector.interval_s(_NOW), detector.may_rest) == (1.0, True)
    scan(detector, _NOW)
    assert not detector.may_rest
    connections.clear()
    scan(detector, _NOW + 1.0)
    assert detector.may_rest
