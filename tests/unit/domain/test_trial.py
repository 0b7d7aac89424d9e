from __future__ import annotations

from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.trial import Trial


def test_a_trial_is_open_until_it_is_taken() -> None:
    trial = Trial(Backend(BackendSpec(name="gpu-0", http=Address("127.0.0.1", 1))))
    assert trial.is_open
    assert repr(trial) == "<Trial gpu-0 open>"
    trial.is_open = False
    assert repr(trial) == "<Trial gpu-0 taken>"
