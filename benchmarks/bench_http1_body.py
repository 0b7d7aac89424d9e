"""Cost of decoding bodies: microseconds per read, by how the body is cut into chunks.

python -m benchmarks.bench_http1_body
"""

from __future__ import annotations

import time

from lb.wire.http1.body import BodyDecoder, ChunkedDecoder, LengthDecoder, Payload

ROUNDS = 7
READ = 64 * 1024


def chunked(size: int) -> bytes:
    """About one read of chunks of `size` bytes."""
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    return chunk * max(READ // len(chunk), 1)


def cost(decoder: BodyDecoder, data: bytes) -> float:
    """Microseconds to decode `data` once more, the best of some rounds."""
    calls = 50
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(calls):
            out: list[Payload] = []
            decoder.decode(data, 0, out, len(data))
        best = min(best, (time.perf_counter_ns() - started) / calls / 1000)
    return best


def main() -> None:
    data = b"x" * READ
    print(f"{'known length':30} {cost(LengthDecoder(1 << 60), data):10.2f} us per 64 KiB read")
    for size in (1, 16, 64, 1024, 16 * 1024, 60 * 1024):
        data = chunked(size)
        name = f"chunks of {size} bytes"
        took = cost(ChunkedDecoder(), data)
        print(f"{name:30} {took:10.2f} us per {len(data)} bytes")


if __name__ == "__main__":
    main()
