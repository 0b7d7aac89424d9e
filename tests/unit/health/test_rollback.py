"""Rollback: bad variants are found in time, and noise finds none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

import pytest

from lb.health.rollback import Baseline, Counts, VariantJudge

HOUR = 3600
STABLE, CANARY = 190, 10
"""Requests a second: 5 % of 200."""


def latency(rng: Random, factor: float = 1.0) -> float:
    """Seconds; the 99th percentile is about three times the median."""
    return factor * 0.02 * rng.lognormvariate(0.0, 0.5)


def second(
    rng: Random, requests: int, errors: float, factor: float = 1.0, *, timed: bool = True
) -> Counts:
    """What a variant does in a second."""
    counts = Counts()
    for _ in range(requests):
        is_error = rng.random() < errors
        counts.add(latency(rng, factor) if timed and not is_error else None, is_error=is_error)
    return counts


def play(judge: VariantJudge, seconds: Iterator[tuple[Counts, Counts]]) -> tuple[int, str] | None:
    """When the variant is rolled back, and why; None: it is not."""
    baseline = Baseline()
    for at, (first, variant) in enumerate(seconds, 1):
        baseline.add(first)
        why = judge.look(variant, first, baseline)
        if why:
            return at, why
    return None


@pytest.mark.parametrize("seed", range(10))
def test_errors_in_half_of_the_answers_are_found_within_ten_seconds(seed: int) -> None:
    rng = Random(seed)
    found = play(
        VariantJudge(2.0, None),
        (
            (second(rng, STABLE, 0.001), second(rng, CANARY, 0.5 if at >= 60 else 0.001))
            for at in range(120)
        ),
    )
    assert found is not None
    assert 60 < found[0] <= 70
    assert "requests failed" in found[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_doubled_latency_is_found_within_two_minutes(seed: int) -> None:
    rng = Random(seed)
    found = play(
        VariantJudge(None, 1.5),
        (
            (second(rng, STABLE, 0.0), second(rng, CANARY, 0.0, 2.0 if at >= 60 else 1.0))
            for at in range(240)
        ),
    )
    assert found is not None
    assert 60 < found[0] <= 180
    assert "99th percentile" in found[1]


def quiet(rng: Random, errors: float, seconds: int) -> Iterator[tuple[Counts, Counts]]:
    """Two variants that are alike, with their counts alone: a minute of trouble for both now and
    then, such as of their network."""
    for at in range(seconds):
        share = 0.3 if at % 1800 in range(60) and errors else errors
        yield (
            tallied(rng, STABLE, share),
            tallied(rng, CANARY, share),
        )


def tallied(rng: Random, requests: int, errors: float) -> Counts:
    counts = Counts()
    counts.requests = requests
    # Poisson by exponential gaps: as many draws as there are errors.
    rate, at = requests * errors, 0.0
    while rate and (at := at + rng.expovariate(rate)) < 1.0:
        counts.errors += 1
    return counts


@pytest.mark.parametrize("errors", [0.0, 0.001, 0.01, 0.1])
def test_variants_that_are_alike_stay(errors: float) -> None:
    # `python -m tests.unit.health.test_rollback` plays a thousand hours.
    assert play(VariantJudge(2.0, None), quiet(Random(3), errors, 4 * HOUR)) is None


def test_latencies_that_are_alike_stay_also_when_both_become_slow_at_once() -> None:
    rng = Random(4)
    seconds = (
        (
            second(rng, 60, 0.0, 3.0 if at % 200 >= 180 else 1.0),
            second(rng, 6, 0.0, 3.0 if at % 200 >= 180 else 1.0),
        )
        for at in range(1000)
    )
    assert play(VariantJudge(2.0, 1.5), seconds) is None


def test_nothing_is_judged_while_the_first_variant_gets_nothing() -> None:
    rng = Random(5)
    seconds = ((Counts(), second(rng, CANARY, 0.5)) for _ in range(300))
    assert play(VariantJudge(2.0, 1.5), seconds) is None


def test_a_few_errors_of_a_variant_do_not_count_where_the_first_has_none() -> None:
    rng = Random(6)
    seconds = ((second(rng, STABLE, 0.0), second(rng, CANARY, 0.002)) for _ in range(600))
    assert play(VariantJudge(2.0, None), seconds) is None


if __name__ == "__main__":
    for share in (0.0, 0.001, 0.01, 0.1):
        false = 0
        for seed in range(10):
            false += (
                play(VariantJudge(2.0, None), quiet(Random(seed), share, 25 * HOUR)) is not None
            )
        sys.stdout.write(f"{share:.1%} of errors: {false} false rollbacks in 250 hours\n")
