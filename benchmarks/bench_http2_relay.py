"""CPU of one unary call through the gRPC relay, sockets left out: microseconds and Python calls.

    python -m benchmarks.bench_http2_relay [--profile]

Both connections are real, their transports only collect. What the kernel and the event loop cost
comes on top (see benchmarks/load).
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from typing import Any

from lb.domain.backend import AppProtocol, Backend, BackendSpec, parse_address
from lb.domain.pool import Placement, PoolSnapshot
from lb.wire.http2 import frames as fr
from lb.wire.http2.fields import encode_field
from tests.fakes.relay import Relay, named_policy

CALLS = 20_000
BATCH = 8
"""Calls that one read brings."""


class CollectingTransport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self.written += len(data)

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += len(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def close(self) -> None:
        pass

    abort = close


def request(stream_id: int, number: int | None, message: bytes | None = None) -> tuple[bytes, ...]:
    """HEADERS and DATA of a small ModelInfer."""
    block = b"\x83\x86" + encode_field(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    block += encode_field(b":authority", b"127.0.0.1:8001")
    block += encode_field(b"content-type", b"application/grpc") + encode_field(b"te", b"trailers")
    block += encode_field(b"user-agent", b"grpc-python/1.60 grpc-c/37 (linux; chttp2)")
    if number is not None:
        block += encode_field(b"traceparent", b"00-%032x-%016x-01" % (number, number))
    if message is None:
        message = b"\0" + (200).to_bytes(4, "big") + b"\x0a\x06simple" + bytes(192)
    return (
        fr.header_frames(stream_id, block, end_stream=False, frame_size=16384),
        fr.frame_header(len(message), fr.DATA, fr.END_STREAM, stream_id) + message,
    )


def response(stream_id: int) -> tuple[bytes, ...]:
    """HEADERS, DATA and trailers."""
    head = b"\x88" + encode_field(b"content-type", b"application/grpc")
    message = b"\0" + (200).to_bytes(4, "big") + bytes(200)
    return (
        fr.header_frames(stream_id, head, end_stream=False, frame_size=16384),
        fr.frame_header(len(message), fr.DATA, 0, stream_id) + message,
        fr.header_frames(
            stream_id, encode_field(b"grpc-status", b"0"), end_stream=True, frame_size=16384
        ),
    )


def join(calls: list[tuple[bytes, ...]], *, interleaved: bool) -> bytes:
    """The frames of one read: call after call, as gRPC's own stacks write them, or all heads,
    then all data, as nghttp2 does."""
    order = zip(*calls, strict=True) if interleaved else calls
    return b"".join(frame for frames in order for frame in frames)


def make_relay() -> Relay:
    """A relay before one backend, of whose models nothing is known."""
    backend = Backend(BackendSpec(name="b", grpc=parse_address("127.0.0.1:1")))
    policy = named_policy("least_loaded")
    placement = Placement((backend,), policy.build((backend,)), policy)
    return Relay(
        [backend],
        snapshot=PoolSnapshot(1, (backend,), (placement, placement)),
        clock=asyncio.get_running_loop().time,
        forgets=True,
    )


def connect(relay: Relay, greeting: bytes) -> tuple[asyncio.Protocol, asyncio.Protocol]:
    """The protocols of a client's connection and of one to the backend, both greeted."""
    server = relay.server_protocol(AppProtocol.GRPC)
    server.connection_made(CollectingTransport())
    client = relay.backend_protocol(
        relay.backends[0], AppProtocol.GRPC, lambda _: CollectingTransport()
    )
    server.data_received(fr.PREFACE + greeting)
    client.data_received(greeting)
    return server, client


async def run(*, unique: bool, interleaved: bool, profile: bool) -> None:
    relay = make_relay()
    greeting = fr.settings({}) + fr.SETTINGS_ACK + fr.window_update(0, 2**30)
    server, client = connect(relay, greeting)
    reads = []
    for start in range(0, CALLS, BATCH):
        numbers = range(start, start + BATCH)
        reads.append(
            (
                join(
                    [request(2 * n + 1, n if unique else None) for n in numbers],
                    interleaved=interleaved,
                ),
                join([response(2 * n + 1) for n in numbers], interleaved=interleaved),
            )
        )
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    began = time.process_time()
    for up, down in reads:
        server.data_received(up)
        relay.flush()
        client.data_received(down)
        relay.flush()
    took = time.process_time() - began
    profiler.disable()
    assert relay.open_requests == 0
    assert relay.backends[0].port(AppProtocol.GRPC).codes == {0: CALLS}
    name = "never-repeating heads" if unique else "repeating heads"
    if interleaved:
        name += ", streams interleaved"
    print(f"{name:46} {took / CALLS * 1e6:6.2f} us per call")
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    relay.timers.close()


if __name__ == "__main__":
    for unique in (False, True):
        for interleaved in (False, True):
            asyncio.run(
                run(unique=unique, interleaved=interleaved, profile="--profile" in sys.argv)
            )
