"""`triton-lb demo` as users run it: the command, the load balancer itself, simulated Tritons."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

from tests.fakes.terminal import Terminal

COMMAND = [sys.executable, "-m", "lb.cli.main", "demo", "--backends", "2"]


def test_once_loses_no_request_to_a_kill_a_freeze_and_a_drain() -> None:
    ended = subprocess.run(
        [*COMMAND[:-2], "--once"], capture_output=True, text=True, timeout=80, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"all \d{3,} answers were right", ended.stdout)
    seen = re.findall(r"clients saw (\d+) answers, (\d+) failed\n", ended.stdout)
    assert [failed for _, failed in seen] == ["0"] * 6
    assert all(int(answers) > 0 for answers, _ in seen)
    assert "killed triton-2 (SIGKILL)" in ended.stdout
    assert re.findall(r"\ds  (\w+) (triton-\d)", ended.stdout) == [
        ("killed", "triton-2"), ("brought", "triton-2"), ("froze", "triton-2"),
        ("brought", "triton-2"), ("drained", "triton-2"), ("brought", "triton-2"),
    ]  # fmt: skip
    assert "round robin" in ended.stdout
    assert "Try it on yours: triton-lb serve" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines() if line.startswith("  triton-")]
    assert [row[0] for row in rows[-3:]] == ["triton-0", "triton-1", "triton-2"]
    assert all(int(row[3]) > 0 for row in rows[-3:])


def test_keys_kill_and_restore_at_a_terminal() -> None:
    with Terminal(COMMAND[:-2], columns=160) as terminal:
        terminal.until("k kill")
        terminal.press("k")
        terminal.until("killed triton-2 (SIGKILL): clients saw")
        terminal.until("was killed by SIGKILL")
        terminal.press("r")
        terminal.until("brought triton-2 back: clients saw")
        terminal.press("d")
        terminal.until("drained triton-2: clients saw")
        terminal.until("draining")
        assert not re.search(r"[1-9]\d* failed", terminal.text)
        terminal.press("\x03")
        assert terminal.wait(30) == 0


def test_each_triton_may_be_killed_frozen_and_drained_by_others() -> None:
    with Terminal(COMMAND[:-2], columns=160) as terminal:
        terminal.until("k kill")
        admin = re.search(r"admin +(http://\S+)", terminal.text)
        assert admin is not None
        terminal.press("r")  # from now on nothing happens by itself
        for name in ("triton-0", "triton-1", "triton-2"):
            process_of(terminal.pid, name).send_signal(signal.SIGKILL)
            terminal.until("was killed by SIGKILL")
            terminal.press("r")
            terminal.until(f"{name} back")
            terminal.until(f"{name}   up ")
            frozen = process_of(terminal.pid, name)
            frozen.send_signal(signal.SIGSTOP)
            # A process that stands still itself may not show the first of them.
            terminal.until(f"{name}   suspected", f"{name}   down")
            frozen.send_signal(signal.SIGCONT)
            terminal.until(f"{name}   up ")
            for action, state in (("drain", "draining"), ("enable", "up ")):
                url = f"{admin[1]}/{name}/{action}"
                urllib.request.urlopen(urllib.request.Request(url, method="POST")).close()
                terminal.until(f"{name}   {state}")
        assert re.search(r"[1-9]\d* right, 0 wrong, 0 failed", terminal.text)
        assert not re.search(r"[1-9]\d* (wrong|failed)", terminal.text)
        terminal.press("\x03")
        assert terminal.wait(30) == 0


def process_of(demo: int, name: str) -> psutil.Process:
    """The simulated Triton of that name."""
    children = psutil.Process(demo).children(recursive=True)
    return next(each for each in children if f"--gpu=GPU-{name}" in each.cmdline())


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
    assert len(children) == 4
    demo.send_signal(number)
    assert demo.wait(timeout=60) == 0
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_demo_ends_when_its_load_balancer_dies(demo: subprocess.Popen[str]) -> None:
    addresses(demo)
    children = psutil.Process(demo.pid).children()
    balancer, _ = [child for child in children if "serve" in child.cmdline()]
    balancer.kill()
    assert demo.wait(timeout=60) == 1
    assert psutil.wait_procs(children, timeout=30)[1] == []
