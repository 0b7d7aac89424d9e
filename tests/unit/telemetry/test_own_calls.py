"""Counts of calls of our own."""

from __future__ import annotations

from lb.telemetry.own_calls import OwnCalls
from tests.fakes.backends import make_backend


def test_each_outcome_is_counted_by_operation_and_backend() -> None:
    calls, a, b = OwnCalls(), make_backend("a"), make_backend("b")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", b, "lost")
    assert calls.counts == {("RepositoryIndex", a, "ok"): 2, ("RepositoryIndex", b, "lost"): 1}


def test_backends_that_are_gone_are_forgotten() -> None:
    calls, a, b = OwnCalls(), make_backend("a"), make_backend("b")
    calls.count("RepositoryIndex", a, "ok")
    calls.count("RepositoryIndex", b, "ok")
    calls.retain({b})
    assert calls.counts == {("RepositoryIndex", b, "ok"): 1}
