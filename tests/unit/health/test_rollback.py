"""Rollback: bad variants are found in time, and noise finds none."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from benchmarks.study.simulate_rollback import (
    FAULTS,
    HOUR,
    SCENES,
    false_rollbacks,
    reaction_s,
)
from lb.health.rollback import Baseline, Counts, VariantJudge

STABLE, CANARY = 190, 10
"""Requests a second: 5 % of 200."""
SEEDS = range(2)
"""`make rollback` plays twenty, and a thousand hours."""


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
        why = judge.verdict(variant, first, baseline)
        if why:
            return at, why
    return None


@pytest.mark.parametrize("scene", [name for name in SCENES if name != "low rate"])
def test_errors_in_half_of_the_answers_are_found_within_ten_seconds(scene: str) -> None:
    for seed in SEEDS:
        reaction = reaction_s(SCENES[scene], FAULTS["half errors"], seed, 10)
        assert reaction is not None
        assert reaction > 0


@pytest.mark.parametrize("scene", [name for name in SCENES if name != "low rate"])
def test_answers_that_take_twice_as_long_are_found_within_two_minutes(scene: str) -> None:
    for seed in SEEDS:
        reaction = reaction_s(SCENES[scene], FAULTS["twice as slow"], seed, 120)
        assert reaction is not None
        assert reaction > 0


def test_a_slow_middle_without_a_slow_tail_does_not_count() -> None:
    """The rule is about the 99th percentile."""
    rng = Random(9)

    def answers(requests: int, typical_s: float) -> Counts:
        counts = Counts()
        for _ in range(requests):
            is_slow = rng.random() < 0.05
            counts.add(2.0 + rng.random() if is_slow else typical_s, is_error=False)
        return counts

    seconds = ((answers(STABLE, 0.02), answers(CANARY, 0.04)) for _ in range(600))
    assert play(VariantJudge(2.0, 1.5), seconds) is None


def test_half_errors_are_found_also_where_there_are_few_requests() -> None:
    for seed in SEEDS:
        assert reaction_s(SCENES["low rate"], FAULTS["half errors"], seed, 300)


@pytest.mark.parametrize("scene", SCENES)
def test_variants_that_are_alike_stay_whatever_their_traffic_is(scene: str) -> None:
    assert false_rollbacks(SCENES[scene], HOUR // 4, seed=7) == []


def test_a_variant_that_stands_still_for_a_second_stays() -> None:
    rng, judge, baseline = Random(8), VariantJudge(2.0, 1.5), Baseline()
    for at in range(600):
        first, other = second(rng, STABLE, 0.0), second(rng, CANARY, 0.0)
        if at % 60 == 59:
            other.latencies = [1.0 + each for each in other.latencies]
        baseline.add(first)
        assert judge.verdict(other, first, baseline) == ""


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
