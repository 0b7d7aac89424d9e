"""Cost of a header block: nanoseconds, by whether it or its fields were seen before.

python -m benchmarks.bench_http2_headers
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from hpack import Encoder

from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.fields import FieldCache, encode_field

ROUNDS = 7
CALLS = 10_000

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1:8001"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"),
    ("te", "trailers"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]
RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]


def block_of(pairs: list[tuple[str, str]]) -> bytes:
    """The fields as literals."""
    return b"".join(encode_field(name.encode(), value.encode()) for name, value in pairs)


def numbered(block: bytes) -> Iterator[bytes]:
    """`block` with a trace id that never repeats."""
    for number in itertools.count():
        yield block + encode_field(b"traceparent", b"00-%032x-%016x-01" % (number, number))


def cost(read: Callable[[bytes], object], blocks: Iterator[bytes]) -> float:
    """Nanoseconds per block, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        some = list(itertools.islice(blocks, CALLS))
        started = time.perf_counter_ns()
        for block in some:
            read(block)
        best = min(best, (time.perf_counter_ns() - started) / CALLS)
    return best


def stateless() -> BlockReader:
    """A reader whose peer has given up its dynamic table."""
    reader = BlockReader(HeadCaches(), 32 * 1024)
    reader.acknowledged()
    return reader


def main() -> None:
    """Print one line per way that a block can take."""
    request, response = block_of(REQUEST), block_of(RESPONSE)
    encoder = Encoder()
    encoder.header_table_size = 0
    huffman = encoder.encode(REQUEST)[1:]
    before = BlockReader(HeadCaches(), 32 * 1024)
    rows: list[tuple[str, Callable[[bytes], object], Iterator[bytes]]] = [
        ("request, known block", stateless().request, itertools.repeat(request)),
        ("request, one new field", stateless().request, numbered(request)),
        ("the same, fields only", FieldCache().split, numbered(request)),
        ("the same, rest Huffman coded", stateless().request, numbered(huffman)),
        ("request, dynamic table", before.request, itertools.repeat(request)),
        ("response, known block", stateless().response, itertools.repeat(response)),
        ("response, one new field", stateless().response, numbered(response)),
    ]
    for name, read, blocks in rows:
        print(f"{name:32} {cost(read, blocks):8.0f} ns")


if __name__ == "__main__":
    main()
