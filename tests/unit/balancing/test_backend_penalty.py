"""What all model queues have at a backend."""

from __future__ import annotations

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.domain.load import Measured
from tests.fakes.backends import make_backend


@pytest.fixture
def penalty() -> BackendPenalty:
    return BackendPenalty(make_backend("one"))


def test_a_penalty_grows_by_each_failure_and_fades(penalty: BackendPenalty) -> None:
    for _ in range(3):
        penalty.on_failure(100.0)
    assert penalty.factor_now(100.0) == pytest.approx(1.25**3)
    assert penalty.factor_now(101.0) == pytest.approx(1.25**3 / 2**0.5)
    assert penalty.factor_now(130.0) == 1.0


def test_a_penalty_has_a_bound(penalty: BackendPenalty) -> None:
    for _ in range(100):
        penalty.on_failure(100.0)
    assert penalty.factor_now(100.0) == 8.0


def test_a_good_answer_halves_a_penalty_until_it_is_gone(penalty: BackendPenalty) -> None:
    for _ in range(4):
        penalty.on_failure(100.0)
    penalty.on_success(100.0)
    assert penalty.factor_now(100.0) == pytest.approx(1.25**4 / 2)
    penalty.on_success(100.0)
    assert penalty.factor_now(100.0) == 1.0


def test_without_a_version_the_newest_that_was_measured_counts(penalty: BackendPenalty) -> None:
    penalty.measured = {
        (b"m", b"9"): Measured(base_s=0.009),
        (b"m", b"10"): Measured(base_s=0.010),
        (b"other", b"11"): Measured(base_s=0.011),
    }
    assert penalty.measured_of(b"m", b"") == Measured(base_s=0.010)
    assert penalty.measured_of(b"m", b"9") == Measured(base_s=0.009)
    assert penalty.measured_of(b"m", b"8") is None
    assert penalty.measured_of(b"none", b"") is None
