"""Rules of eviction on the same requests; `python -m benchmarks.eviction` has the whole table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.eviction import OURS, Recording, Shares, compare, play, traffic


@pytest.mark.parametrize("kind", ["1.0", "shift", "scan"])
def test_ours_is_between_least_recently_used_and_the_best_offline_order(kind: str) -> None:
    requests = traffic(1)[kind][:1000]
    lru, ours, belady = (play(requests, name).no_load for name in ("LRU", OURS, "Belady"))
    assert lru - 0.01 < ours < belady


def test_other_rules_play_the_requests_and_load_times_of_a_recorded_run(tmp_path: Path) -> None:
    requests = traffic(1)["1.0"][:120]
    names = [(at, model.decode()) for at, model in requests]
    Recording(names, [(1.0, 0.5)], [(9.0, 1.5)], (0.7, 0.6), 0.5).write(tmp_path / "run")
    recorded = dict(compare(Recording.read(tmp_path / "run")))
    assert recorded.pop("triton-lb, measured") == Shares(0.7, 0.6)
    belady = recorded["Belady, simulated, 3 stores of 4"]
    assert belady.ready < belady.no_load
    assert belady.no_load == max(
        shares.no_load for name, shares in recorded.items() if "simulated" in name
    )
    # With loads that take longer, fewer of these requests find their models ready.
    slow = Recording(names, [(1.0, 5.0)], [(9.0, 1.5)], (0.7, 0.6), 0.5)
    assert play(requests, "Belady", slow).ready < belady.ready
