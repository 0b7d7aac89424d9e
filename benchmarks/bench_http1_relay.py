"""Cost of one HTTP/1.1 exchange without its system calls: microseconds on transports of memory.

    python -m benchmarks.bench_http1_relay

What a request costs on sockets is measured by `python -m benchmarks.load`; this shows what a
change to the relay's own code is worth, without the noise of a network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmarks.bench_http1_heads import MESH, SMALL
from lb.domain.backend import AppProtocol, Backend, BackendSpec, parse_address
from tests.fakes.http1_sides import FakeTransport
from tests.fakes.relay import Relay

EVENT = b"6e\r\n" + b"x" * 108 + b"\n\n\r\n"
OTHER_EVENT = b"6f\r\n" + b"x" * 109 + b"\n\n\r\n"
ROUNDS = 7
CALLS = 10_000
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 149\r\n\r\n"
ANSWER = _OK + b"x" * 149
STREAM = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"a\r\nxxxxxxxxxx\r\n" + b"0\r\n\r\n"
)


class Sink(FakeTransport):
    """Forgets what is written."""

    def write(self, data: object) -> None:
        """Take it."""

    def writelines(self, list_of_data: object) -> None:
        """Take it."""


class NoSink:
    """Forgets finished requests: their telemetry has a bench of its own."""

    def finished(self, record: object) -> None:
        """Take it."""


def make_sides() -> tuple[Relay, asyncio.Protocol, asyncio.Protocol]:
    """A client and an idle connection to a backend, on transports that forget."""
    backend = Backend(BackendSpec(name="b", http=parse_address("127.0.0.1:1")))
    relay = Relay([backend], forgets=True, sink=NoSink())
    server = relay.server_protocol(AppProtocol.HTTP)
    server.connection_made(Sink(server))
    connection = relay.backend_protocol(backend, AppProtocol.HTTP, Sink, is_reused=True)
    return relay, server, connection


def cost(exchange: Callable[[int], None]) -> float:
    """Microseconds per exchange, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for number in range(CALLS):
            exchange(number)
        best = min(best, (time.perf_counter_ns() - started) / CALLS / 1000)
    return best


async def measure() -> None:
    """Print one line per kind of exchange."""
    small = SMALL + b"x" * 130
    mesh = MESH + b"x" * 332
    cut = mesh.index(b"0f5ab6a3")
    sides, server, connection = make_sides()

    def whole(_: int) -> None:
        server.data_received(small)
        connection.data_received(ANSWER)

    def never_repeating(number: int) -> None:
        server.data_received(b"%b%08x%b" % (mesh[:cut], number, mesh[cut + 8 :]))
        connection.data_received(ANSWER)

    def in_two_reads(_: int) -> None:
        server.data_received(small[:-10])
        server.data_received(small[-10:])
        connection.data_received(ANSWER[:-10])
        connection.data_received(ANSWER[-10:])

    def chunked_answer(_: int) -> None:
        server.data_received(small)
        connection.data_received(STREAM)

    def event(_: int) -> None:
        streaming.data_received(EVENT)

    def events_of_two_lengths(number: int) -> None:
        streaming.data_received(OTHER_EVENT if number & 1 else EVENT)

    def four_events(_: int) -> None:
        streaming.data_received(4 * EVENT)

    other_sides, asking, streaming = make_sides()
    asking.data_received(SMALL.replace(b"/infer", b"/generate_stream") + b"x" * 130)
    streaming.data_received(STREAM.partition(b"a\r\n")[0])

    for name, exchange in (
        ("whole, head known", whole),
        ("head never repeats, 12 fields", never_repeating),
        ("both in two reads", in_two_reads),
        ("chunked answer", chunked_answer),
        ("event of a stream, in one read", event),
        ("events of two lengths", events_of_two_lengths),
        ("four events in one read", four_events),
    ):
        print(f"{name:35} {cost(exchange):8.2f} us")
    sides.timers.close()
    other_sides.timers.close()


if __name__ == "__main__":
    asyncio.run(measure())
