"""README.md as a new user follows it: its files, its commands, its figures."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.headlines import PAGES as FIGURES
from benchmarks.headlines import refreshed
from lb.testing import simulated
from tests.documentation.pages import README, blocks, commands
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until

SHELL = [
    command for block in blocks(README) if block.language == "sh" for command in commands(block)
]
ADMIN = [
    command
    for command in SHELL
    if re.search(
        r" (status|backends|models|queue|drain|enable|add|remove|reload|upgrade)\b", command
    )
]
STATELESS = ("triton-lb check", "triton-lb generate", "triton-lb version")
YAML = next(block.text for block in blocks(README) if block.language == "yaml")
PYTHON = next(block.text for block in blocks(README) if block.language == "python")
ELSEWHERE = {
    "make demo": "tests/integration/test_demo.py",
    "python3 -m venv": "tools/setup_venv.sh",
    "pip install": "tools/setup_venv.sh",
    "triton-lb simulate": "tests/integration/test_testing.py",
    "triton-lb serve": "tests/integration/test_process.py",
    "docker build": "tests/deploy/test_image.py",
    "docker compose": "tests/deploy/test_compose.py",
}
"""Who runs the commands that no test here does, as far as that can be without Docker."""
SIX = README.parent / "config" / "six.yaml"


def run(command: str, folder: Path, **environment: str) -> str:
    """Run a command of README.md with this tree's triton-lb, and return what it prints."""
    words = shlex.split(command)
    if words[0] == "triton-lb":
        words[:1] = [sys.executable, "-m", "lb"]
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    return ended.stdout


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run the file of README.md before six simulated Tritons, all on free ports.

    Yields what became of each address of the file.
    """
    with simulated(6) as tritons:
        moved = {
            f"0.0.0.0:{8000 + at}": f"127.0.0.1:{port}" for at, port in enumerate(free_ports(3))
        }
        moved["127.0.0.1:8003"] = f"127.0.0.1:{free_ports(1)[0]}"
        for at, triton in enumerate(tritons):
            addresses = (triton.http, triton.grpc, triton.metrics)
            moved |= {f"127.0.0.1:{18000 + 100 * at + n}": a for n, a in enumerate(addresses)}
        file = folder / "six.yaml"
        file.write_text(re.sub(r"[\d.]+:\d{4,5}\b", lambda found: moved[found[0]], YAML))
        process = ChildProcess(
            (sys.executable, "-m", "lb", "serve", str(file)), log=folder / "log", env=ENVIRONMENT
        )
        try:
            yield moved
        finally:
            process.close()


def test_the_file_is_the_one_that_the_text_names() -> None:
    assert SIX.read_text().endswith(YAML)


def test_figures_are_those_of_the_results() -> None:
    # When this fails: make docs
    for page in FIGURES:
        assert page.read_text() == refreshed(page.read_text())


@pytest.mark.parametrize("begin", STATELESS)
def test_commands_without_a_process(begin: str, tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(README.parent / "config")
    for command in [each for each in SHELL if each.startswith(begin)]:
        run(command, tmp_path)
    if "generate" in begin:
        (up,) = [each for each in SHELL if " up " in each]
        stack = (tmp_path / shlex.split(up)[3]).read_text()
        assert len(re.findall(r"^  gpu-\d:$", stack, re.MULTILINE)) == 8


def test_every_command_is_run_by_a_test() -> None:
    here = [each for each in SHELL if each.startswith(("curl ", *STATELESS))]
    assert len(ADMIN) == 10
    for command in set(SHELL).difference(ADMIN, here):
        (place,) = [place for begin, place in ELSEWHERE.items() if command.startswith(begin)]
        assert (README.parent / place).exists()


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What became of each address of the file, before Tritons that are all up."""
    with serving(tmp_path_factory.mktemp("six")) as moved:
        backends = f"http://{moved['127.0.0.1:8003']}/api/v1/backends"

        def is_up() -> bool:
            try:
                with urllib.request.urlopen(backends, timeout=10) as answer:
                    return [each["state"] for each in json.load(answer)["backends"]] == ["up"] * 6
            except OSError:
                return False

        wait_until(is_up, timeout_s=60, what="six backends up")
        yield moved


def test_requests_before_six_tritons(six: dict[str, str], tmp_path: Path) -> None:
    (curl,) = [each for each in SHELL if each.startswith("curl ")]
    answer = run(curl.replace("127.0.0.1:8000", six["0.0.0.0:8000"]), tmp_path)
    assert '"name":"simple"' in answer
    python = PYTHON.replace("127.0.0.1:8001", six["0.0.0.0:8001"])
    ended = subprocess.run(
        [sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.startswith("True ")


@pytest.mark.parametrize("command", ADMIN)
def test_commands_before_six_tritons(six: dict[str, str], command: str, tmp_path: Path) -> None:
    """One after the other, as a user types them."""
    run(command, tmp_path, TRITON_LB_ADMIN=six["127.0.0.1:8003"])


def test_the_two_tritons_of_the_first_steps(tmp_path: Path) -> None:
    """`simulate` listens where `serve --backend` looks for Tritons."""
    simulate, serve = (
        next(each for each in SHELL if each.startswith(f"triton-lb {name} "))
        for name in ("simulate", "serve")
    )
    assert shlex.split(simulate)[2:] == ["--count", "2"]
    assert re.findall(r"127\.0\.0\.1:(\d+)", serve) == ["18000", "18100"]
