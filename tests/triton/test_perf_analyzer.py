"""NVIDIA's load generator, unchanged, against one Triton and against the balancer before it."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.triton.balancer import RunningBalancer
from tests.triton.server import ENVIRONMENT, RealTriton
from tests.triton.target import Target

CONCURRENCY = 32
# Three windows of half a second, and any figures are stable enough: others may use the processor.
SHORT = ("--measurement-interval", "500", "--stability-percentage", "999")


@pytest.fixture(params=["direct", "balanced"])
def one_backend(request: pytest.FixtureRequest, tritons: tuple[RealTriton, ...]) -> Target:
    """It compares the statistics before and after, so all requests must meet at one Triton."""
    if request.param == "direct":
        return tritons[0].target
    running: RunningBalancer = request.getfixturevalue("balancer_of_one")
    return running.target


def perf_analyzer(*arguments: str) -> str:
    """Load `simple` with it and return its report."""
    return measure("-m", "simple", "--concurrency-range", str(CONCURRENCY), *arguments)


def measure(*arguments: str) -> str:
    """Run it, which must end well, and return its report."""
    finished = subprocess.run(
        (str(ENVIRONMENT / "bin" / "perf_analyzer"), "-b", "1", *SHORT, *arguments),
        env={**os.environ, "LD_LIBRARY_PATH": str(ENVIRONMENT / "native")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=80,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


@pytest.mark.parametrize(
    "arguments", [("-i", "http"), ("-i", "grpc"), ("-i", "grpc", "--streaming")]
)
def test_perf_analyzer_measures_as_against_one_triton(
    one_backend: Target, arguments: tuple[str, ...]
) -> None:
    address = one_backend.http if "http" in arguments else one_backend.grpc
    report = perf_analyzer(*arguments, "-u", address)
    assert f"Request concurrency: {CONCURRENCY}" in report
    # The second figure is counted by the server itself, in its statistics before and after.
    for name in ("Request count", "Inference count"):
        counted = re.search(rf"{name}: (\d+)", report)
        assert counted, report
        assert int(counted[1]) > CONCURRENCY
    assert "failed" not in report.lower()
