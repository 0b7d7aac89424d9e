"""Rules of eviction on the same requests; `python -m benchmarks.eviction` has the whole table."""

from __future__ import annotations

import pytest

from benchmarks.eviction import RULES, share_without_load, traffic


@pytest.mark.parametrize("kind", ["1.0", "shift", "scan"])
def test_ours_is_between_least_recently_used_and_the_best_offline_order(kind: str) -> None:
    requests = traffic(1)[kind][:1000]
    lru, ours, belady = (
        share_without_load(requests, RULES[name](requests))
        for name in ("LRU", "two half-lives (triton-lb)", "Belady")
    )
    assert lru - 0.01 < ours < belady
