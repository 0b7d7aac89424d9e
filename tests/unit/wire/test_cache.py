"""The cache of heads is bounded, in number and in size."""

from __future__ import annotations

from lb.wire.cache import HeadCache


def test_cache_of_heads_is_bounded_and_keeps_what_is_used() -> None:
    cache: HeadCache[object] = HeadCache()
    usual = object()
    cache.put(b"usual", usual)
    for number in range(5000):
        cache.put(b"%d" % number, object())
        if number % 500 == 0:
            assert (cache.get(b"usual") or cache.revive(b"usual")) is usual
    assert len(cache) <= 2 * 1024
    assert cache.revive(b"0") is None


def test_long_blocks_are_not_kept() -> None:
    cache: HeadCache[object] = HeadCache()
    cache.put(bytes(4097), object())
    assert len(cache) == 0
