"""Counts of calls of our own."""

from __future__ import annotations

from lb.telemetry.own_calls import OwnCalls


def test_each_outcome_is_counted_by_operation_and_backend() -> None:
    calls = OwnCalls()
    calls.count("RepositoryIndex", "a", "ok")
    calls.count("RepositoryIndex", "a", "ok")
    calls.count("RepositoryIndex", "b", "lost")
    assert calls.counts == {
        ("RepositoryIndex", "a", "ok"): 2,
        ("RepositoryIndex", "b", "lost"): 1,
    }
