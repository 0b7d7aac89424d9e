from __future__ import annotations

from random import Random

import pytest

from lb.balancing.policies import make_policy


def test_an_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="no policy 'fastest'; there are: least_loaded, "):
        make_policy("fastest", Random(1))
