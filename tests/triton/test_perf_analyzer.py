"""NVIDIA's load generator, unchanged, against one Triton and against the balancer before three."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.triton.balancer import RunningBalancer
from tests.triton.server import ENVIRONMENT
from tests.triton.target import Target

CONCURRENCY = 16
# Three windows, and any figures are stable enough: others may use the processor.
SHORT = ("--measurement-interval", "300", "--stability-percentage", "999")

HTTP, GRPC, STREAMING = ("-i", "http"), ("-i", "grpc"), ("-i", "grpc", "--streaming")
SIMPLE = ("-m", "simple")
SEQUENCES = ("-m", "simple_sequence", "--sequence-length", "10")
SHARED_MEMORY = (*SIMPLE, "--shared-memory", "system")
DECOUPLED = ("-m", "repeat_int32", "--shape", "IN:2", "--shape", "DELAY:2", "--input-data", "zero")

MODES = {
    "JSON": (*SIMPLE, *HTTP, "--input-tensor-format", "json"),
    "compressed": (*SIMPLE, *GRPC, "--grpc-compression-algorithm", "gzip"),
    "strings": ("-m", "simple_string", *GRPC, "--string-data", "17"),
    "ensemble": ("-m", "simple_ensemble", *HTTP),
    "sequences over HTTP": (*SEQUENCES, *HTTP),
    "sequences over streams": (*SEQUENCES, *STREAMING),
    "shared memory over HTTP": (*SHARED_MEMORY, *HTTP),
    "shared memory over gRPC": (*SHARED_MEMORY, *GRPC),
}


def perf_analyzer(*arguments: str) -> str:
    """Load `simple` with it and return its report."""
    return measure(*SIMPLE, *arguments)


def measure(*arguments: str) -> str:
    """Run it, which must end well and without errors, and return its report."""
    concurrency = ("-b", "1", "--concurrency-range", str(CONCURRENCY))
    finished = subprocess.run(
        (str(ENVIRONMENT / "bin" / "perf_analyzer"), *concurrency, *SHORT, *arguments),
        env={**os.environ, "LD_LIBRARY_PATH": str(ENVIRONMENT / "native")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=80,
        check=False,
    )
    report = finished.stdout
    assert finished.returncode == 0, report
    assert f"Request concurrency: {CONCURRENCY}" in report
    assert "failed" not in report.lower()
    return report


def figure(report: str, name: str) -> int:
    """One of the counts of a report."""
    counted = re.search(rf"{name}: (\d+)", report)
    assert counted, report
    return int(counted[1])


def check_counts(report: str) -> None:
    """The servers say that they did what the client asked for; their statistics are compared.

    The client counts what ended within its windows, the servers what they did between two readings
    of their statistics, and either reading may be late by a pause of the machine: a fifth of a
    short measurement has been seen, from one server. One of three servers counts a third. That sums
    are exact is tested in `test_fan_out.py`.
    """
    asked, served = figure(report, "Request count"), figure(report, "Inference count")
    assert asked > CONCURRENCY
    assert abs(served - asked) <= 3 * CONCURRENCY + 0.4 * asked, report


@pytest.mark.parametrize("mode", [HTTP, GRPC, STREAMING], ids=["HTTP", "gRPC", "streaming"])
def test_servers_count_what_the_client_counts(target: Target, mode: tuple[str, ...]) -> None:
    address = target.http if mode is HTTP else target.grpc
    check_counts(measure(*SIMPLE, *mode, "-u", address))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_three_servers_count_as_one(balancer: RunningBalancer, mode: tuple[str, ...]) -> None:
    target = balancer.target
    check_counts(measure(*mode, "-u", target.http if "http" in mode else target.grpc))


def test_decoupled_models_are_measured_over_streams(balancer: RunningBalancer) -> None:
    report = measure(*DECOUPLED, *STREAMING, "-u", balancer.target.grpc)
    assert figure(report, "Request count") > CONCURRENCY


def test_metrics_are_collected(balancer: RunningBalancer, tmp_path: Path) -> None:
    collected = tmp_path / "report.csv"
    report = measure(
        *(*SIMPLE, *GRPC, "-u", balancer.target.grpc),
        *("--collect-metrics", "--metrics-url", f"{balancer.metrics}/metrics"),
        *("--metrics-interval", "200", "--verbose-csv", "-f", str(collected)),
    )
    check_counts(report)
    assert "Inferences/Second" in collected.read_text()
