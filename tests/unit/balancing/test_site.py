"""What all lines have at a backend."""

from __future__ import annotations

import pytest

from lb.balancing.site import Site
from lb.domain.load import Measured
from tests.fakes.backends import make_backend


@pytest.fixture
def site() -> Site:
    return Site(make_backend("one"))


def test_a_penalty_grows_by_each_failure_and_fades(site: Site) -> None:
    for _ in range(3):
        site.failed(100.0)
    assert site.penalty_now(100.0) == pytest.approx(1.5**3)
    assert site.penalty_now(102.0) == pytest.approx(1.5**3 / 2)
    assert site.penalty_now(130.0) == 1.0


def test_a_penalty_has_a_bound(site: Site) -> None:
    for _ in range(100):
        site.failed(100.0)
    assert site.penalty_now(100.0) == 8.0


def test_a_good_answer_halves_a_penalty_until_it_is_gone(site: Site) -> None:
    for _ in range(3):
        site.failed(100.0)
    site.went_well(100.0)
    assert site.penalty_now(100.0) == pytest.approx(1.5**3 / 2)
    site.went_well(100.0)
    assert site.penalty_now(100.0) == 1.0


def test_without_a_version_the_newest_that_was_measured_counts(site: Site) -> None:
    site.measured = {
        (b"m", b"9"): Measured(base_s=0.009),
        (b"m", b"10"): Measured(base_s=0.010),
        (b"other", b"11"): Measured(base_s=0.011),
    }
    assert site.measured_of(b"m", b"") == Measured(base_s=0.010)
    assert site.measured_of(b"m", b"9") == Measured(base_s=0.009)
    assert site.measured_of(b"m", b"8") is None
    assert site.measured_of(b"none", b"") is None


def test_executions_take_longer_by_the_part_that_goes_to_others(site: Site) -> None:
    assert site.speak_for(0.5) == pytest.approx(2.0)
    assert site.speak_for(0.55) == 1.0
    assert site.speak_for(0.75) == pytest.approx(2.0)
    assert site.speak_for(0.0) == pytest.approx(0.25)
    assert site.speak_for(1.0) == pytest.approx(10.0)
