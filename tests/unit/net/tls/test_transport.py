"""The transport without a network: two of them back to back, byte by byte and all at once."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from lb.net.iteration import ROOM, IterationBudget
from lb.net.tls.transport import TlsTransport
from tests.fakes.tls import World
from tests.fakes.tls_records import RecordWriter, logging_context, trickle, writer_of


class Iterations:
    """The loop of a budget; its iterations come when the test says."""

    def __init__(self, step_s: float = 0.0) -> None:
        """
        Args:
            step_s: seconds that each step of a handshake takes.
        """
        self._due: list[Callable[[], None]] = []
        ticks = itertools.count()
        loop = cast("asyncio.AbstractEventLoop", self)
        self.budget = IterationBudget(loop, lambda: next(ticks) * step_s)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def run(self, most: int = 100_000) -> int:
        """Run iterations as long as there is something to do. Returns how many there were."""
        for count in range(most):
            if not self._due:
                return count
            due, self._due = self._due, []
            for callback in due:
                callback()
        return most


class Wire(asyncio.Transport):
    """A plain transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.calls: list[str] = []
        self.size = 0
        self.reads = True
        self.is_closed = False

    def write(self, data: Any) -> None:
        if "write_eof" in self.calls:
            raise RuntimeError("Cannot call write() after write_eof()")
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
        return self.reads

    def is_closing(self) -> bool:
        return self.is_closed

    def _note(self, name: str) -> None:
        self.calls.append(name)

    def write_eof(self) -> None:
        self._note("write_eof")

    def close(self) -> None:
        self.is_closed = True
        self._note("close")

    def abort(self) -> None:
        self.is_closed = True
        self._note("abort")

    def pause_reading(self) -> None:
        self.reads = False
        self._note("pause_reading")

    def resume_reading(self) -> None:
        self.reads = True
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

    def __init__(self, *, heeds_cuts: bool = False, iterations: Iterations | None = None) -> None:
        super().__init__((iterations or Iterations()).budget)
        self.wire = Wire()
        self.app = App()
        self.not_opened_by: list[Exception | None] = []
        self._heeds_cuts = heeds_cuts

    @property
    def heeds_cuts(self) -> bool:
        return self._heeds_cuts

    @property
    def shakes_in_turn(self) -> bool:
        return True

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


# Handshakes that come together


class Crowd:
    """Clients whose hellos come in one iteration of the loop."""

    def __init__(self, world: World, count: int, step_s: float) -> None:
        self.iterations = Iterations(step_s)
        self.servers = [End(iterations=self.iterations) for _ in range(count)]
        self.clients = [End() for _ in range(count)]
        for server, client in zip(self.servers, self.clients, strict=True):
            server.connection_made(server.wire)
            client.connection_made(client.wire)
            client.start(client.make_object(world.client_context(), server_hostname="localhost"))
            secure = server.make_object(world.server_context(), server_side=True)
            server.start(secure, bytes(client.wire.out))
            client.wire.out.clear()

    def answered(self) -> list[bool]:
        """Which clients have an answer, in the order in which they came."""
        return [bool(server.wire.out) for server in self.servers]

    def carry(self) -> None:
        """Bring everything to the other side, in as many iterations as it takes."""
        while any(end.wire.out for end in (*self.servers, *self.clients)):
            for one, other in zip(
                (*self.servers, *self.clients), (*self.clients, *self.servers), strict=True
            ):
                data = bytes(one.wire.out)
                one.wire.out.clear()
                if data:
                    other.data_received(data)
            self.iterations.run()


@pytest.mark.parametrize(("step_s", "at_once"), [(0.0005, 4), (0.005, 1)])
def test_handshakes_share_the_budget_in_the_order_of_their_hellos(
    world: World, step_s: float, at_once: int
) -> None:
    crowd = Crowd(world, 3 * at_once, step_s)
    for batch in (1, 2, 3):
        done = batch * at_once
        assert crowd.answered() == [True] * done + [False] * (3 * at_once - done)
        # However long a step takes, half of the budget is left to what is read meanwhile.
        assert crowd.iterations.budget.left == ROOM // 2
        assert crowd.iterations.run(1) == 1
    crowd.carry()
    for server, client in zip(crowd.servers, crowd.clients, strict=True):
        assert server.app.told == client.app.told == ["made"]
        assert server.wire.calls == []


def test_handshakes_that_come_one_by_one_do_not_wait(world: World) -> None:
    crowd = Crowd(world, 1, 0.001)
    assert crowd.answered() == [True]
    assert crowd.iterations.run() == 1
    assert crowd.iterations.budget.has_turn


@pytest.mark.parametrize("is_reset", [True, False])
def test_a_client_that_leaves_before_its_turn_costs_nothing(world: World, is_reset: bool) -> None:
    crowd = Crowd(world, 3, 0.005)
    _, leaving, last = crowd.servers
    assert leaving.wire.reads
    if not is_reset:
        assert not leaving.eof_received()  # the loop closes the connection
    leaving.connection_lost(None)
    crowd.iterations.run(1)
    assert crowd.answered() == [True, False, True]
    assert leaving.not_opened_by == [None]
    assert last.app.told == []


def test_a_client_that_sends_more_before_its_turn_is_not_read_from(world: World) -> None:
    crowd = Crowd(world, 2, 0.005)
    server = crowd.servers[1]
    for _ in range(2):
        server.data_received(b"\x17\x03\x03\x00\x01x")
    assert server.wire.calls == ["pause_reading"]
    assert not server.wire.out
    crowd.iterations.run()
    assert server.wire.calls == ["pause_reading", "close"]
    assert crowd.answered() == [True, True]
    assert isinstance(server._failure, ssl.SSLError)


# Costly records


class Trickle:
    """A server, and a client that sends records of one byte with key updates between them."""

    def __init__(self, world: World, *, heeds_cuts: bool = False) -> None:
        self.iterations = Iterations()
        self.server = End(heeds_cuts=heeds_cuts, iterations=self.iterations)
        self.client = End()
        context = logging_context(world)
        for end in (self.client, self.server):
            end.connection_made(end.wire)
        self.server.start(self.server.make_object(world.server_context(), server_side=True))
        self.client.start(self.client.make_object(context, server_hostname="localhost"))
        while not self.client.is_open:
            for one, other in ((self.client, self.server), (self.server, self.client)):
                data = bytes(one.wire.out)
                one.wire.out.clear()
                if data and not self.client.is_open:
                    other.data_received(data)
        self.finished = bytes(self.client.wire.out)
        """What ends the handshake; the server has not got it."""
        self.client.wire.out.clear()
        self.writer = writer_of(context)
        self.sent = bytes(at % 251 for at in range(3000))

    def begin(self) -> None:
        """Have all the records come in one read, of which the budget allows a part."""
        self.server.data_received(self.finished)
        self.server.data_received(trickle(self.writer, self.sent))

    def make(self, records: list[str | int]) -> tuple[bytes, bytes]:
        """Key updates, many one-byte records, and records of some sizes, and the data in them."""
        stream, sent = bytearray(), bytearray()
        for kind in records:
            if kind == "update":
                stream += self.writer.key_update()
                continue
            data = b"many" * 10 if isinstance(kind, str) else bytes((len(sent) % 251,)) * kind
            seal = trickle if isinstance(kind, str) else RecordWriter.data
            stream += seal(self.writer, data)
            sent += data
        return bytes(stream), bytes(sent)

    @property
    def got(self) -> bytes:
        return b"".join(self.server.app.data)


@pytest.fixture
def flood(world: World) -> Trickle:
    return Trickle(world)


def test_costly_records_are_spread_over_iterations(flood: Trickle) -> None:
    flood.begin()
    server = flood.server
    assert 0 < len(flood.got) < ROOM / 4
    assert len(server.app.data) == 1
    assert server.wire.calls == ["pause_reading"]
    assert server.is_reading()
    assert flood.iterations.run() > 6
    assert flood.got == flood.sent
    assert server.wire.calls == ["pause_reading", "resume_reading"]


def test_the_rest_of_a_handshake_is_spread_too(flood: Trickle) -> None:
    flood.server.data_received(flood.finished + trickle(flood.writer, flood.sent))
    assert flood.server.app.told == ["made"]
    assert 0 < len(flood.got) < ROOM / 4
    flood.iterations.run()
    assert flood.got == flood.sent


def test_many_connections_share_the_budget(world: World) -> None:
    first, second = Trickle(world), Trickle(world)
    second.server._iteration = first.server._iteration
    for each in (first, second):
        each.begin()
    assert len(second.got) < 10
    first.iterations.run(3)
    assert 0 < len(second.got) < ROOM / 2
    first.iterations.run()
    assert (first.got, second.got) == (first.sent, second.sent)


def test_a_small_request_does_not_wait_for_the_budget(flood: Trickle) -> None:
    flood.server.data_received(flood.finished)
    flood.iterations.budget.spend(10 * ROOM)
    flood.server.data_received(flood.writer.data(b"head") + flood.writer.data(b"body"))
    flood.server.data_received(flood.writer.data(b"next"))
    assert flood.server.app.data == [b"headbody", b"next"]
    assert flood.server.wire.calls == []


def test_a_protocol_that_pauses_gets_nothing_more_until_it_resumes(flood: Trickle) -> None:
    flood.begin()
    server = flood.server
    got = flood.got
    server.pause_reading()
    assert not server.is_reading()
    flood.iterations.run()
    assert flood.got == got
    server.resume_reading()
    server.resume_reading()
    assert flood.got == got
    assert server.is_reading()
    assert server.wire.calls == ["pause_reading"]
    flood.iterations.run()
    assert flood.got == flood.sent
    assert server.wire.calls == ["pause_reading", "resume_reading"]


def test_a_pause_outlasts_what_was_held_back(flood: Trickle) -> None:
    flood.begin()
    app, server = flood.server.app, flood.server
    server.pause_reading()
    server.resume_reading()
    take = app.data_received

    def take_and_pause(data: bytes) -> None:
        take(data)
        if len(flood.got) == len(flood.sent):
            server.pause_reading()

    app.data_received = take_and_pause  # type: ignore[method-assign]
    flood.iterations.run()
    assert flood.got == flood.sent
    assert not server.wire.reads
    server.resume_reading()
    assert server.wire.reads


def test_reads_that_come_nevertheless_keep_their_order(flood: Trickle) -> None:
    flood.begin()
    flood.server.data_received(flood.writer.data(b"last"))
    flood.iterations.run()
    assert flood.got == flood.sent + b"last"


@pytest.mark.parametrize("heeds_cuts", [True, False])
def test_the_end_comes_after_what_was_held_back(world: World, heeds_cuts: bool) -> None:
    flood = Trickle(world, heeds_cuts=heeds_cuts)
    flood.begin()
    server = flood.server
    assert server.eof_received()
    assert server.app.told == ["made"]
    flood.iterations.run()
    assert flood.got == flood.sent
    assert server.app.told == (["made"] if heeds_cuts else ["made", "eof"])
    assert ("abort" in server.wire.calls) is heeds_cuts


def test_a_goodbye_ends_what_was_held_back(flood: Trickle) -> None:
    flood.begin()
    flood.server.data_received(flood.writer.goodbye() + b"after it")
    assert flood.server.app.told == ["made"]
    flood.iterations.run()
    assert flood.got == flood.sent
    assert flood.server.app.told == ["made", "eof"]
    assert flood.server.wire.calls == ["pause_reading", "resume_reading"]


def test_a_broken_record_ends_what_was_held_back(flood: Trickle) -> None:
    flood.begin()
    server = flood.server
    server.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert "close" not in server.wire.calls
    flood.iterations.run()
    server.connection_lost(None)
    assert flood.got == flood.sent
    assert server.wire.calls[-1] == "close"
    assert server.app.told[-1].startswith("lost [SSL")


@pytest.mark.parametrize("call", ["close", "abort"])
def test_a_closed_connection_hands_over_nothing_more(flood: Trickle, call: str) -> None:
    flood.begin()
    got = flood.got
    getattr(flood.server, call)()
    flood.iterations.run()
    flood.server.connection_lost(None)
    flood.iterations.run()
    assert flood.got == got
    assert flood.server.wire.calls == ["pause_reading", call]
    assert flood.server.app.told == ["made", "lost None"]


def test_a_lost_connection_drops_what_was_held_back(flood: Trickle) -> None:
    flood.begin()
    got = flood.got
    flood.server.connection_lost(None)
    flood.iterations.run()
    assert flood.got == got
    assert flood.server.app.told == ["made", "lost None"]


def test_a_protocol_that_fails_later_loses_its_connection(flood: Trickle) -> None:
    flood.begin()

    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    flood.server.app.data_received = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        flood.iterations.run()
    assert flood.server.wire.calls[-1] == "abort"


def test_nothing_is_written_after_our_end(flood: Trickle) -> None:
    server = flood.server
    server.data_received(flood.finished)
    server.write_eof()
    goodbye = bytes(server.wire.out)
    server.data_received(flood.writer.key_update())
    server.data_received(trickle(flood.writer, b"late"))
    server.data_received(flood.writer.data(b"!"))
    assert flood.got == b"late!"
    assert bytes(server.wire.out) == goodbye
