"""Counting what became of configurations."""

from __future__ import annotations

from lb.telemetry.reloads import Reloads


def test_the_first_configuration_counts_as_success_and_not_as_reload() -> None:
    reloads = Reloads("abc", 5.0)
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("abc", 5.0, True)
    assert reloads.counts == {"applied": 0, "unchanged": 0, "refused": 0}


def test_a_refused_one_leaves_what_is_in_force() -> None:
    reloads = Reloads("abc", 5.0)
    reloads.refused()
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("abc", 5.0, False)
    reloads.accepted("def", 9.0, changed=True)
    assert (reloads.digest, reloads.applied_at, reloads.succeeded) == ("def", 9.0, True)
    reloads.accepted("ghi", 10.0, changed=False)
    assert reloads.counts == {"applied": 1, "unchanged": 1, "refused": 1}
    assert reloads.digest == "ghi"
