"""How long steps of sequences take on each backend."""

from __future__ import annotations

import pytest

from lb.balancing.step_latency import StepLatencies, StepLatency
from tests.fakes.backends import make_backends

NOW = 100.0


def taught(latency: StepLatency, *took_s: float, now: float = NOW) -> StepLatency:
    for each in took_s:
        latency.ended(now, now + each)
    return latency


def test_a_first_step_that_loads_the_model_is_forgotten_at_once() -> None:
    assert taught(StepLatency(), 5.0, 0.01).quick_s == pytest.approx(0.01)


def test_a_few_steps_tell_nothing() -> None:
    first, second = make_backends(0, 0)
    latencies = StepLatencies()
    taught(latencies.of(first), *[0.5] * 3)
    taught(latencies.of(second), *[0.01] * 4)
    assert latencies.known() == pytest.approx({second: 0.01})


def test_steps_that_waited_for_others_say_little() -> None:
    latency = taught(StepLatency(), *([0.01] + [0.03] * 9) * 20)
    assert latency.quick_s < 0.011


def test_a_backend_that_has_become_slower_is_known_after_some_minutes() -> None:
    latency = taught(StepLatency(), *[0.01] * 20)
    for second in range(180):
        taught(latency, 0.04, now=NOW + second)
        assert second > 30 or latency.quick_s < 0.02
    assert latency.quick_s == pytest.approx(0.04)


def test_a_backend_without_steps_is_tried_again_only_while_others_have_some() -> None:
    first, second = make_backends(0, 0)
    latencies = StepLatencies()
    taught(latencies.of(first), *[0.5] * 20)
    taught(latencies.of(second), *[0.01] * 20)
    assert latencies.known() == pytest.approx({first: 0.5, second: 0.01})
    taught(latencies.of(second), 0.01, now=NOW + 60.0)
    assert latencies.known() == pytest.approx({second: 0.01})


def test_backends_that_have_gone_are_forgotten() -> None:
    first, second = make_backends(0, 0)
    latencies = StepLatencies()
    taught(latencies.of(first), *[0.5] * 20)
    taught(latencies.of(second), *[0.01] * 20)
    latencies.keep_only(frozenset({second}))
    assert latencies.known() == pytest.approx({second: 0.01})
