"""Cost of taking frames apart: nanoseconds per frame, by kind, size and how reads cut them.

python -m benchmarks.bench_http2_codec

The calls that the codec makes do nothing here.
"""

from __future__ import annotations

import time
from typing import Any

from lb.wire.http2 import frames as fr
from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.budget import Allowance, Spending
from lb.wire.http2.codec import Http2Codec
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import StreamError
from lb.wire.memory_budget import MemoryBudget

ROUNDS = 7
BYTES = 2**20
"""What is taken apart per round, at most."""
FRAMES = 4000
STREAM = 1
ALLOWANCES = {what: Allowance(burst=2**30, per_s=1.0) for what in Spending}


class SilentCodec(Http2Codec):
    """Has one stream with a window that never ends."""

    def __init__(self) -> None:
        super().__init__(
            BlockReader(HeadCaches(), 2**15),
            frame_limit=fr.MAX_FRAME_SIZE,
            header_limit=2**16,
            allowances=ALLOWANCES,
        )
        pipe: Pipe[Any] = Pipe(None, MemoryBudget(2**20), 2**62, 2**62)
        pipe.credit = -(2**62)
        self.streams[STREAM] = pipe

    def on_head(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """Nothing."""

    def on_data(self, pipe: Pipe[Any], payload: Payload, end_stream: int) -> None:
        """Nothing."""

    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        """There is no room for runs."""

    def on_reset(self, pipe: Pipe[Any], code: int) -> None:
        """Nothing."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """Nothing."""

    def on_credit(self, pipe: Pipe[Any] | None) -> None:
        """Nothing."""

    def on_stream_error(self, stream_id: int, error: StreamError) -> None:
        """Nothing."""

    def is_idle(self, stream_id: int) -> bool:
        """Only one stream was opened."""
        return stream_id != STREAM

    def clock(self) -> float:
        """As if all came at once."""
        return 0.0


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Any frame."""
    return fr.frame_header(len(payload), kind, flags, stream_id) + payload


def cost(one: bytes, read: int) -> float:
    """Nanoseconds per frame `one` that repeats, in reads of `read` bytes; the best of some."""
    count = min(FRAMES, max(BYTES // len(one), 1))
    data = one * count
    reads = [data[start : start + read] for start in range(0, len(data), read)]
    best = float("inf")
    for _ in range(ROUNDS):
        codec = SilentCodec()
        codec.receive(fr.settings({}))
        started = time.perf_counter_ns()
        for part in reads:
            codec.receive(part)
        best = min(best, (time.perf_counter_ns() - started) / count)
    return best


def main() -> None:
    """Print one line per kind of frame."""
    block = bytes(150)
    rows = {
        "DATA of 200 bytes": frame(fr.DATA, 0, STREAM, bytes(200)),
        "DATA of 16 KiB": frame(fr.DATA, 0, STREAM, bytes(16_384)),
        "DATA of 1 MiB": frame(fr.DATA, 0, STREAM, bytes(2**20)),
        "padded DATA of 200 bytes": frame(fr.DATA, fr.PADDED, STREAM, b"\x08" + bytes(208)),
        "HEADERS of 150 bytes": frame(fr.HEADERS, fr.END_HEADERS, STREAM, block),
        "HEADERS with priority": frame(fr.HEADERS, 0x24, STREAM, bytes(5) + block),
        "WINDOW_UPDATE": fr.window_update(STREAM, 1),
        "PING": fr.ping(bytes(8), ack=False),
    }
    print(f"{'ns per frame, in reads of':28} {'64 KiB':>9} {'1,000 bytes':>12}")
    for name, one in rows.items():
        print(f"{name:28} {cost(one, 65_536):9.0f} {cost(one, 1000):12.0f}")


if __name__ == "__main__":
    main()
