"""Compressed messages are opened whole or not at all."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from lb.wire.grpc.compression import UNKNOWN_SIZE, Inflater, inflated, inflated_start


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_both_codings_of_grpc_are_inflated(compress: Callable[[bytes], bytes]) -> None:
    assert inflated(compress(b"message"), 100) == b"message"
    assert inflated(memoryview(compress(b"")), 100) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        b"",
        zlib.compress(bytes(10_000_000)),
        zlib.compress(b"ok")[:-1],
        zlib.compress(b"ok") + b"more",
    ],
    ids=["foreign", "empty", "bomb", "cut off", "followed"],
)
def test_what_is_not_one_whole_message_is_none(data: bytes) -> None:
    assert inflated(data, 1000) is None


def test_the_limit_is_of_what_comes_out() -> None:
    data = zlib.compress(bytes(1000))
    assert inflated(data, 1000) == bytes(1000)
    assert inflated(data, 999) is None


@pytest.mark.parametrize(
    "content", [b"", b"ok", bytes(300_000), random.Random(1).randbytes(300_000)]
)
@pytest.mark.parametrize("limit", [1000, 65_536, 300_000])
def test_messages_come_in_slices(content: bytes, limit: int) -> None:
    slices = _slices(gzip.compress(content), limit)
    assert b"".join(slices) == content
    assert max(map(len, slices)) <= limit


@pytest.mark.parametrize(
    "data",
    [b"no zlib", b"", zlib.compress(b"ok")[:-1], zlib.compress(b"ok") + b"more",
     zlib.compress(random.Random(1).randbytes(65_521)) + bytes(65_536)],
)  # fmt: skip
def test_what_is_not_one_whole_message_is_an_error(data: bytes) -> None:
    with pytest.raises(zlib.error):
        _slices(data, 1000)


def _slices(data: bytes, limit: int) -> list[bytes]:
    inflater = Inflater(data)
    slices = []
    while not inflater.is_whole:
        slices.append(inflater.next(limit))
    return slices


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_the_first_bytes_of_a_message_on_its_way_are_inflated(
    compress: Callable[[bytes], bytes],
) -> None:
    data = compress(bytes(range(256)) * 100)
    start, size = inflated_start(data, 300)
    assert start == (bytes(range(256)) * 2)[:300]
    assert size == UNKNOWN_SIZE
    assert inflated_start(data[:200], 10**6)[1] == UNKNOWN_SIZE
    assert inflated_start(data, 10**6)[1] == 25_600
    assert inflated_start(b"no zlib", 100) == (b"", 0)
