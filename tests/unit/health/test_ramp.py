from __future__ import annotations

import pytest

from lb.health.ramp import NO_RAMP, RampRules, Ramps
from tests.fakes.backends import make_backend


def test_a_share_grows_evenly_from_its_beginning() -> None:
    rules = RampRules()
    assert [rules.share(age) for age in (0.0, 0.5, 5.0, 9.0, 10.0, 99.0)] == pytest.approx(
        [0.1, 0.1, 0.5, 0.9, 1.0, 1.0]
    )


def test_one_that_joins_has_less_than_the_others() -> None:
    old, new = make_backend("old", weight=2.0), make_backend("new", weight=2.0)
    ramps = Ramps(RampRules())
    ramps.begin(new, 100.0)
    assert not ramps.advance([old, new], 105.0)
    assert (old.share, new.share) == (1.0, pytest.approx(0.5))
    assert new.inverse_weight == pytest.approx(1.0)
    ramps.begin(new, 106.0)  # it is on its way already
    assert ramps.advance([old, new], 110.0)
    assert (new.share, new.inverse_weight) == (1.0, 0.5)
    assert not ramps.advance([old, new], 111.0)


def test_when_all_begin_each_has_all_of_its_share() -> None:
    backends = [make_backend(name) for name in "abc"]
    ramps = Ramps(RampRules())
    for backend in backends:
        ramps.begin(backend, 100.0)
    for now in (100.0, 103.0, 110.0):
        ramps.advance(backends, now)
        assert [backend.share for backend in backends] == [1.0, 1.0, 1.0]


def test_the_one_that_began_last_is_compared_with_the_one_that_is_furthest() -> None:
    first, second = make_backend("first"), make_backend("second")
    ramps = Ramps(RampRules())
    ramps.begin(first, 100.0)
    ramps.begin(second, 104.0)
    ramps.advance([first, second], 108.0)
    assert (first.share, second.share) == (1.0, pytest.approx(0.5))


def test_one_that_is_gone_begins_anew() -> None:
    old, new = make_backend("old"), make_backend("new")
    ramps = Ramps(RampRules())
    ramps.begin(new, 100.0)
    ramps.advance([old, new], 100.0)
    ramps.end(new)
    assert new.share == 1.0
    ramps.begin(new, 200.0)
    ramps.advance([old, new], 201.0)
    assert new.share == pytest.approx(0.1)


def test_without_a_window_nobody_waits() -> None:
    old, new = make_backend("old"), make_backend("new")
    ramps = Ramps(NO_RAMP)
    ramps.begin(new, 100.0)
    assert not ramps.advance([old, new], 100.0)
    assert new.share == 1.0
