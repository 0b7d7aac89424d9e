"""The end of a connection reaches the peer, and does not wait for ever."""

from __future__ import annotations

from lb.proxy.http2.graceful_close import LINGER_S, STALL_S, GracefulClose
from tests.fakes.clock import FakeLoop
from tests.fakes.transport import FakeTransport


def make(unsent: int = 0) -> tuple[FakeLoop, FakeTransport, list[Exception | None]]:
    loop, transport = FakeLoop(), FakeTransport()
    transport.buffered = unsent
    lost: list[Exception | None] = []
    GracefulClose(transport, loop.wheel(), lost.append).begin()
    return loop, transport, lost


def test_the_owner_hears_of_the_end() -> None:
    loop, transport, lost = make()
    transport.get_protocol().connection_lost(None)
    assert lost == [None]
    loop.advance(60)
    assert not transport.aborted


def test_a_peer_that_never_closes_is_cut() -> None:
    loop, transport, _ = make()
    loop.advance(LINGER_S - 0.1)
    assert not transport.is_closing()
    loop.advance(0.2)
    assert transport.closed


def test_a_peer_that_reads_slowly_gets_all() -> None:
    loop, transport, _ = make(unsent=100)
    for left in range(99, -1, -1):
        loop.advance(LINGER_S)
        assert not transport.is_closing()
        transport.buffered = left
    loop.advance(2 * LINGER_S)
    assert transport.closed


def test_a_peer_that_does_not_read_is_cut_in_the_end() -> None:
    loop, transport, _ = make(unsent=100)
    loop.advance(STALL_S - 1)
    assert not transport.aborted
    loop.advance(2)
    assert transport.aborted


def test_a_transport_that_was_reset_is_cut_at_once() -> None:
    loop, transport = FakeLoop(), FakeTransport()
    transport.eof_error = OSError("not connected")
    GracefulClose(transport, loop.wheel(), lambda _: None).begin()
    assert transport.aborted
