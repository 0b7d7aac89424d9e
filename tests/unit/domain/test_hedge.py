"""How long answers usually take."""

from __future__ import annotations

from lb.domain.hedge import Durations


def test_nothing_is_said_of_few_answers() -> None:
    durations = Durations()
    for _ in range(19):
        durations.add(b"m", 1.0)
    assert durations.quantile(b"m", 0.95) == 0.0
    durations.add(b"m", 1.0)
    assert durations.quantile(b"m", 0.95) == 1.0
    assert durations.quantile(b"other", 0.95) == 0.0


def test_a_quantile_is_of_the_last_answers() -> None:
    durations = Durations()
    for number in range(100):
        durations.add(b"m", float(number))
    assert durations.quantile(b"m", 0.5) == 50.0
    assert durations.quantile(b"m", 0.95) == 95.0
    assert durations.quantile(b"m", 0.999) == 99.0
    for _ in range(200):
        durations.add(b"m", 7.0)
    assert durations.quantile(b"m", 0.95) == 7.0


def test_names_of_models_have_an_end() -> None:
    durations = Durations()
    for number in range(2000):
        durations.add(b"%d" % number, 1.0)
    assert len(durations.models()) == 1000
