from __future__ import annotations

from random import Random

from lb.balancing.policies import make_policy
from lb.balancing.trial import TrialPicker
from lb.domain.trial import Trial
from tests.fakes.backends import make_backend


def test_the_first_request_is_the_trial_and_no_other() -> None:
    tried, other = make_backend("tried"), make_backend("other")
    trial = Trial(tried)
    picker = TrialPicker(trial, make_policy("least_loaded", Random(1)).build([other]))
    assert [picker.pick() for _ in range(3)] == [tried, other, other]
    assert not trial.is_open


def test_a_trial_that_another_picker_took_is_not_given_twice() -> None:
    tried, other = make_backend("tried"), make_backend("other")
    policy = make_policy("round_robin", Random(1))
    trial = Trial(tried)
    first, second = (TrialPicker(trial, policy.build([other])) for _ in range(2))
    assert first.pick() is tried
    assert second.pick() is other


def test_a_full_backend_gets_no_trial_yet() -> None:
    tried = make_backend("tried", max_in_flight=1)
    tried.in_flight = 1
    trial = Trial(tried)
    assert TrialPicker(trial, None).pick() is None
    assert trial.is_open
