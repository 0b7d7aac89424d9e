"""The transport without a network: two of them back to back, byte by byte and all at once."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import psutil
import pytest

from lb.net.tls.transport import TlsTransport
from tests.fakes.tls import World


class Wire(asyncio.Transport):
    """A plain transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.calls: list[str] = []
        self.size = 0

    def write(self, data: Any) -> None:
        self.out += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("1.2.3.4", 5)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return self.size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (1, 2)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limits {high} {low}")

    def can_write_eof(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return True

    def _note(self, name: str) -> None:
        self.calls.append(name)

    def write_eof(self) -> None:
        self._note("write_eof")

    def close(self) -> None:
        self._note("close")

    def abort(self) -> None:
        self._note("abort")

    def pause_reading(self) -> None:
        self._note("pause_reading")

    def resume_reading(self) -> None:
        self._note("resume_reading")


class App(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.data: list[bytes] = []
        self.keeps_half = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.keeps_half

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(f"lost {exc}")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class End(TlsTransport):
    """One end."""

    def __init__(self, *, heeds_cuts: bool = False) -> None:
        super().__init__()
        self.wire = Wire()
        self.app = App()
        self.not_opened_by: list[Exception | None] = []
        self._heeds_cuts = heeds_cuts

    @property
    def heeds_cuts(self) -> bool:
        return self._heeds_cuts

    def greeted(self, data: bytes) -> None:
        raise AssertionError("the tests begin handshakes at once")

    def opened(self) -> asyncio.Protocol | None:
        return self.app

    def not_opened(self, error: Exception | None) -> None:
        self.not_opened_by.append(error)


class Both:
    """A client and a server."""

    def __init__(self, world: World, *, heeds_cuts: bool = False) -> None:
        self.client, self.server = End(heeds_cuts=heeds_cuts), End()
        for end in (self.client, self.server):
            end.connection_made(end.wire)
        self.server.start(self.server.make_object(world.server_context(), server_side=True))
        context = world.client_context()
        self.client.start(self.client.make_object(context, server_hostname="localhost"))

    def carry(self, step: int = 1 << 30) -> None:
        """Bring everything to the other side, `step` bytes at a time."""
        while self.client.wire.out or self.server.wire.out:
            for one, other in ((self.client, self.server), (self.server, self.client)):
                data = bytes(one.wire.out)
                one.wire.out.clear()
                for at in range(0, len(data), step):
                    other.data_received(data[at : at + step])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def both(world: World) -> Both:
    pair = Both(world)
    pair.carry()
    return pair


@pytest.mark.parametrize("step", [1, 7, 1 << 30])
def test_bytes_arrive_however_they_are_cut(world: World, step: int) -> None:
    pair = Both(world)
    pair.carry(step)
    sent = bytes(range(256)) * 200
    pair.client.write(sent)
    pair.server.writelines([b"a", memoryview(b"bc"), bytearray(b"d")])
    pair.server.write(b"")
    pair.carry(step)
    assert b"".join(pair.server.app.data) == sent
    assert pair.client.app.data == [b"abcd"]
    assert pair.client.app.told == pair.server.app.told == ["made"]


def test_what_one_read_brings_is_handed_over_in_one_piece(both: Both) -> None:
    both.client.write(bytes(100_000))
    both.carry()
    assert [len(piece) for piece in both.server.app.data] == [100_000]


def test_a_connection_keeps_little_memory_after_much_has_passed(world: World) -> None:
    pairs = [Both(world) for _ in range(60)]
    for pair in pairs:
        pair.carry()
    before = psutil.Process().memory_info().rss
    for pair in pairs:
        pair.client.write(bytes(256_000))
        pair.carry()
        pair.server.app.data.clear()
    each = (psutil.Process().memory_info().rss - before) / len(pairs)
    assert each < 300_000  # both ends; the library's buffers alone would keep 500,000


def test_facts_of_tls_are_told_and_others_asked_below(both: Both) -> None:
    server = both.server
    assert isinstance(server.get_extra_info("sslcontext"), ssl.SSLContext)
    assert server.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert server.get_extra_info("cipher")[1] == "TLSv1.3"
    assert both.client.get_extra_info("peercert")["subject"]
    assert server.get_extra_info("peername") == ("1.2.3.4", 5)
    assert server.get_extra_info("nothing", 7) == 7


def test_waiting_and_limits_are_those_below(both: Both) -> None:
    server = both.server
    server.set_write_buffer_limits(high=10)
    server.pause_reading()
    server.resume_reading()
    server.wire.size = 9
    assert server.wire.calls == ["limits 10 None", "pause_reading", "resume_reading"]
    assert (server.get_write_buffer_size(), server.get_write_buffer_limits()) == (9, (1, 2))
    assert server.is_reading()
    server.pause_writing()
    server.resume_writing()
    assert server.app.told == ["made", "pause", "resume"]


def test_close_says_goodbye(both: Both) -> None:
    both.server.write(b"last")
    both.server.close()
    both.server.write(b"too late")
    assert both.server.is_closing()
    assert both.server.wire.calls == ["close"]
    both.carry()
    assert both.client.app.data == [b"last"]
    assert both.client.app.told == ["made", "eof"]


def test_a_half_closed_side_still_hears(both: Both) -> None:
    both.client.write(b"question")
    both.client.write_eof()
    assert both.client.wire.calls == ["write_eof"]
    both.client.write(b"too late")
    both.carry()
    assert (both.server.app.data, both.server.app.told) == ([b"question"], ["made", "eof"])
    both.server.write(b"answer")
    both.carry()
    assert both.client.app.data == [b"answer"]
    assert both.server.wire.calls == []


def test_a_protocol_that_does_not_want_halves_is_closed(both: Both) -> None:
    both.server.app.keeps_half = False
    both.client.write_eof()
    both.carry()
    assert both.server.wire.calls == ["close"]


@pytest.mark.parametrize("heeds_cuts", [True, False])
def test_a_cut_is_a_loss_only_where_it_matters(world: World, heeds_cuts: bool) -> None:
    pair = Both(world, heeds_cuts=heeds_cuts)
    pair.carry()
    client = pair.client
    assert client.eof_received()
    assert client.wire.calls == (["abort"] if heeds_cuts else [])
    client.connection_lost(None)
    lost = "lost closed without the goodbye of TLS" if heeds_cuts else "lost None"
    assert client.app.told == (["made", lost] if heeds_cuts else ["made", "eof", lost])


@pytest.mark.parametrize(("waiting", "call"), [(0, "close"), (99, "abort")])
def test_broken_records_end_the_connection_with_an_alert(
    both: Both, waiting: int, call: str
) -> None:
    server = both.server
    server.wire.size = waiting
    server.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.wire.calls == [call]
    assert server.wire.out
    server.data_received(b"more")
    server.connection_lost(None)
    assert server.app.data == []
    assert server.app.told[-1].startswith("lost [SSL")


def test_a_failed_handshake_opens_nothing(world: World) -> None:
    pair = Both(world)
    pair.server.data_received(b"\x16\x03\x01\x00\x02\x01\x00")
    pair.server.data_received(b"GET / HTTP/1.1\r\n\r\n")
    pair.server.connection_lost(None)
    assert isinstance(pair.server.not_opened_by[0], ssl.SSLError)
    assert pair.server.app.told == []
    with pytest.raises(RuntimeError):
        pair.server.get_protocol()


def test_a_connection_that_is_lost_takes_everything_in_silence(both: Both) -> None:
    server = both.server
    server.connection_lost(None)
    server.write(b"x")
    server.write_eof()
    server.close()
    server.abort()
    server.pause_reading()
    server.resume_reading()
    server.set_write_buffer_limits()
    assert (server.is_reading(), server.get_write_buffer_size()) == (False, 0)
    assert server.get_write_buffer_limits() == (0, 0)
    assert server.wire.calls == []


def test_another_protocol_may_take_over(both: Both) -> None:
    other = App()
    both.server.set_protocol(other)
    both.client.write(b"x")
    both.carry()
    assert both.server.get_protocol() is other
    assert other.data == [b"x"]
