from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address, ip_network
from typing import Any, cast

import pytest

from lb.domain.client import Client, TrustedProxies
from lb.net.client import client_of
from lb.net.proxy_protocol import AnnouncedTransport, ProxiedConnection, ProxyAcceptor
from lb.net.timers import TimerWheel
from lb.wire.proxy_protocol import ProxyHeader
from tests.fakes.proxy_headers import LOCAL, binary_header, text_header
from tests.fakes.transport import FakeTransport

_TRUSTED = TrustedProxies(networks=(ip_network("127.0.0.0/8"),))


class Above(asyncio.Protocol):
    """What stands behind the header."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.transport: Any = None
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.client = client_of(transport, _TRUSTED)

    def data_received(self, data: bytes) -> None:
        self.data += data


class Listener:
    """A listener whose connections begin with a header."""

    def __init__(self, trusted: TrustedProxies = _TRUSTED) -> None:
        self.made: list[Above] = []
        self.failures = 0
        self.failed = asyncio.Event()
        self.timers = TimerWheel(asyncio.get_running_loop())
        self.acceptor = ProxyAcceptor(self._make, trusted, self.timers, 10.0, self._count)

    def _make(self) -> Above:
        self.made.append(Above())
        return self.made[-1]

    def _count(self) -> None:
        self.failures += 1
        self.failed.set()

    def connect(self) -> tuple[ProxiedConnection, FakeTransport]:
        connection, transport = self.acceptor(), FakeTransport()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection, transport

    def assert_settled(self) -> None:
        assert len(self.acceptor) == 0
        assert len(self.timers) == 0


@pytest.mark.parametrize("header", [text_header(), binary_header()])
async def test_the_connection_is_handed_on_with_its_client(header: bytes) -> None:
    listener = Listener()
    connection, transport = listener.connect()
    connection.data_received(header[:7])
    assert len(listener.acceptor) == 1
    assert not listener.made
    connection.data_received(header[7:] + b"rest")
    (above,) = listener.made
    assert transport.get_protocol() is above
    assert above.data == b"rest"
    assert above.client is not None
    assert (above.client.name, above.client.peer) == ("203.0.113.7:4711", ip_address("127.0.0.1"))
    assert listener.failures == 0
    listener.assert_settled()


async def test_a_load_balancer_that_speaks_for_itself_is_the_client() -> None:
    listener = Listener()
    connection, transport = listener.connect()
    connection.data_received(LOCAL)
    (above,) = listener.made
    assert above.transport is transport
    assert above.data == b""
    assert above.client is not None
    assert above.client.name == "127.0.0.1:4711"


async def test_what_others_send_goes_on_untouched() -> None:
    listener = Listener(TrustedProxies(networks=(ip_network("10.0.0.0/8"),)))
    _, transport = listener.connect()
    (above,) = listener.made
    assert transport.get_protocol() is above
    listener.assert_settled()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PROXY x\r\n"])
async def test_a_proxy_without_a_good_header_is_closed_and_counted(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    connection, transport = listener.connect()
    with caplog.at_level(logging.INFO):
        connection.data_received(data)
    assert transport.aborted
    connection.connection_lost(None)
    connection.data_received(b"late")
    assert (listener.failures, listener.made) == (1, [])
    assert [record.message for record in caplog.records] == ["PROXY header refused"]
    listener.assert_settled()


async def test_checks_that_connect_and_close_are_no_failure() -> None:
    listener = Listener()
    connection, _ = listener.connect()
    connection.connection_lost(None)
    assert listener.failures == 0
    listener.assert_settled()


async def test_half_a_header_is_a_failure() -> None:
    listener = Listener()
    connection, _ = listener.connect()
    connection.data_received(b"PROXY ")
    connection.connection_lost(None)
    assert listener.failures == 1
    listener.assert_settled()


async def test_a_header_that_does_not_come_is_a_failure() -> None:
    listener = Listener()
    listener.acceptor.limit_s = 0.0
    _, transport = listener.connect()
    async with asyncio.timeout(30):
        await listener.failed.wait()
    assert transport.aborted
    assert listener.failures == 1
    listener.assert_settled()


async def test_closing_ends_those_that_wait() -> None:
    listener = Listener()
    _, transport = listener.connect()
    listener.acceptor.close()
    assert transport.aborted
    assert listener.failures == 0
    listener.assert_settled()


async def test_nothing_is_delivered_to_a_connection_that_was_refused() -> None:
    listener = Listener()
    connection, transport = listener.connect()
    transport.closed = True
    connection.data_received(text_header() + b"rest")
    assert listener.made[0].data == b""


def test_an_announced_transport_is_the_plain_one() -> None:
    plain = FakeTransport()
    transport = AnnouncedTransport(plain, ProxyHeader(0))
    transport.set_protocol(protocol := Above())
    transport.write(b"a")
    transport.writelines([b"b", b"c"])
    transport.pause_reading()
    transport.write_eof()
    assert (plain.written, plain.reading, plain.eof) == (b"abc", False, True)
    assert cast("Any", transport.get_protocol()) is protocol
    assert transport.get_write_buffer_size() == 0
    assert transport.can_write_eof()
    assert transport.get_extra_info("peername") == ("127.0.0.1", 4711)
    transport.abort()
    assert plain.aborted
    assert transport.is_closing()
