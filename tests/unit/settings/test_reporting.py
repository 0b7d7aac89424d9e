"""What of logs and of the latency budget is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.settings.model import Settings


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


@pytest.mark.parametrize("sample", [-0.1, 1.1])
def test_a_share_is_between_none_and_all(sample: float) -> None:
    with pytest.raises(ValidationError):
        make(access_log={"sample": sample})


def test_no_latency_goal_is_negative() -> None:
    with pytest.raises(ValidationError):
        make(standby={"latency": "-1s"})
