"""Models of real Tritons are warmed up from their own configurations."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton

WARMED = ("simple", "simple_int8", "simple_identity", "identity_fp32", "simple_ensemble")
LEFT_ALONE = ("simple_sequence", "accumulator", "repeat_int32")


def executions(triton: RealTriton, model: str) -> int:
    """Inferences that a model of a Triton has computed since it was loaded."""
    url = f"http://{triton.target.http}/v2/models/{model}/stats"
    with urllib.request.urlopen(url) as answer:
        [stats] = json.load(answer)["model_stats"]
    return int(stats["inference_stats"]["success"]["count"])


@pytest.fixture
def fresh(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> RealTriton:
    """A Triton to be restarted."""
    return tritons[-1]


def test_each_model_of_a_triton_that_joins_computes_once(
    fresh: RealTriton, tritons: tuple[RealTriton, ...], tmp_path: Path
) -> None:
    for balancer in RunningBalancer.run(tmp_path, tritons, warm_up={"enabled": True}):
        fresh.kill9()
        wait_until(lambda: not fresh.is_running, what="it is dead")
        fresh.restart()
        fresh.wait_ready()
        for model in WARMED:
            wait_until(
                lambda model=model: executions(fresh, model) > 0,  # type: ignore[misc]
                timeout_s=30,
                what=f"{model} has computed something",
            )
        for model in LEFT_ALONE:
            assert executions(fresh, model) == 0
        wait_until(balancer.all_in_rotation, timeout_s=30.0, what="all Tritons are back")
