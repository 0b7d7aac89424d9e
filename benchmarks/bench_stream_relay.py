"""CPU of one message of a `ModelStreamInfer` and its answer through the relay, sockets left out.

    python -m benchmarks.bench_stream_relay [--profile]

As `bench_http2_relay`, which see. The streams stay open; each read brings one message of each.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from dataclasses import replace

from benchmarks.bench_http2_relay import connect, make_relay
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.wire.http2 import frames as fr
from lb.wire.http2.fields import encode_field

STREAMS = 8
ROUNDS = 5_000
NAME = b"\x0a\x06simple"


def head(stream_id: int) -> bytes:
    """HEADERS of a stream."""
    block = b"\x83\x86" + encode_field(b":authority", b"127.0.0.1:8001")
    block += encode_field(b":path", b"/inference.GRPCInferenceService/ModelStreamInfer")
    block += encode_field(b"content-type", b"application/grpc") + encode_field(b"te", b"trailers")
    return fr.header_frames(stream_id, block, end_stream=False, frame_size=16384)


def message(stream_id: int, start: bytes, size: int) -> bytes:
    """A DATA frame with one message."""
    rest = size - len(start) - 3
    body = start + b"\x3a" + bytes((rest & 0x7F | 0x80, rest >> 7)) + bytes(rest)
    content = b"\0" + size.to_bytes(4, "big") + body
    return fr.frame_header(len(content), fr.DATA, 0, stream_id) + content


def routes_of(kind: str) -> dict[bytes, ModelRoute]:
    """What is known of the model."""
    facts = ModelFacts(is_stateful=False, is_decoupled=False)
    if kind == "known":
        return {b"simple": ModelRoute(facts=facts, is_uniform=True, is_plain=True)}
    if kind == "unknown":
        return {}
    # As many instances as streams, where all are idle whenever one sends, and one, where none is.
    instances = STREAMS if kind == "scheduled" else 1
    plan = QueuePlan(limits={}, default=Capacity(instances, is_auto=True, instances=instances))
    return {b"simple": ModelRoute(facts=facts, is_uniform=True, plan=plan)}


async def run(size: int, other_size: int, *, kind: str, profile: bool) -> None:
    relay = make_relay()
    routes = routes_of(kind)
    if routes:
        relay.pool.publish(replace(relay.pool.current, routes=routes))
    greeting = fr.settings({4: 2**31 - 1}) + fr.SETTINGS_ACK + fr.window_update(0, 2**30)
    server, client = connect(relay, greeting)
    ids = range(1, 2 * STREAMS, 2)
    server.data_received(b"".join(map(head, ids)))
    ups = [
        b"".join(message(stream_id, NAME, length) for stream_id in ids)
        for length in (size, other_size)
    ]
    down = b"".join(message(stream_id, b"\x12", size) for stream_id in ids)
    server.data_received(ups[0])
    answer = b"\x88" + encode_field(b"content-type", b"application/grpc")
    client.data_received(
        b"".join(fr.header_frames(n, answer, end_stream=False, frame_size=16384) for n in ids)
    )
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    began = time.process_time()
    for number in range(ROUNDS):
        client.data_received(down)
        relay.flush()
        server.data_received(ups[number % 2])
        relay.flush()
    took = time.process_time() - began
    profiler.disable()
    sizes = f"{size} or {other_size} B, {kind} model"
    print(f"{sizes:32} {took / ROUNDS / STREAMS * 1e6:6.2f} us per message and answer")
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    ok = encode_field(b"grpc-status", b"0")
    server.data_received(b"".join(fr.frame_header(0, fr.DATA, fr.END_STREAM, n) for n in ids))
    client.data_received(
        b"".join(fr.header_frames(n, ok, end_stream=True, frame_size=16384) for n in ids)
    )
    assert relay.open_requests == 0
    relay.timers.close()


if __name__ == "__main__":
    for sizes in ((200, 200), (200, 201), (2000, 2000), (9000, 9000)):
        for kind in ("known", "unknown", "scheduled", "crowded"):
            asyncio.run(run(*sizes, kind=kind, profile="--profile" in sys.argv))
