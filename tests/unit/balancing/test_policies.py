from __future__ import annotations

from random import Random

import pytest

from lb.balancing.policies import POLICY_NAMES, make_policy
from tests.fakes.backends import make_backends


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_named_policy_builds_a_picker(name: str) -> None:
    backends = make_backends(0, 0)
    assert make_policy(name, Random(1)).build(backends).pick() in backends


def test_an_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="no policy 'fastest'; there are: least_loaded, "):
        make_policy("fastest", Random(1))
