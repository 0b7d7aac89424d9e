"""`triton-lb demo` as users run it: the command, the load balancer itself, simulated Tritons."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

COMMAND = [sys.executable, "-m", "lb.cli.main", "demo", "--backends", "2"]


def test_once_answers_every_request_right_and_ends_by_itself() -> None:
    ended = subprocess.run(
        [*COMMAND, "--once"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "all 600 answers were right" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines() if line.startswith("  triton-")]
    assert [row[:3] for row in rows] == [["triton-0", "up", "0"], ["triton-1", "up", "0"]]
    assert sum(int(row[3]) for row in rows) == 600
    assert all(int(row[3]) > 0 for row in rows)


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def addresses(demo: subprocess.Popen[str]) -> dict[str, str]:
    """Return the addresses that the demo prints, once it has printed them all."""
    assert demo.stdout is not None
    found: dict[str, str] = {}
    for line in demo.stdout:
        match line.split():
            case ["HTTP" | "gRPC" | "metrics" | "admin" as name, address]:
                found[name] = address
            case ["try", *_]:
                break
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_serves_until_a_signal_and_leaves_nobody_behind(
    demo: subprocess.Popen[str], number: signal.Signals
) -> None:
    shown = addresses(demo)
    assert sorted(shown) == ["HTTP", "admin", "gRPC", "metrics"]
    with urllib.request.urlopen(f"{shown['HTTP']}/v2/models/simple") as answer:
        assert answer.status == 200
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) == 3
    demo.send_signal(number)
    assert demo.wait(timeout=20) == 0
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_demo_ends_when_its_load_balancer_dies(demo: subprocess.Popen[str]) -> None:
    addresses(demo)
    children = psutil.Process(demo.pid).children()
    (balancer,) = [child for child in children if "serve" in child.cmdline()]
    balancer.kill()
    assert demo.wait(timeout=20) == 1
    assert psutil.wait_procs(children, timeout=5)[1] == []
