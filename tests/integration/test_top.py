"""`triton-lb top` at a pseudo-terminal, and for scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT
from tests.fakes.serving import Serving, before_one
from tests.fakes.terminal import Terminal

COMMAND = [sys.executable, "-m", "lb.cli.main", "top"]


@pytest.fixture
def admin(triton: Ports, tmp_path: Path) -> Iterator[str]:
    serving = Serving(tmp_path, before_one(triton))
    yield serving.until_serving()["admin"]
    serving.process.close()


def test_keys_drain_and_enable_a_backend(admin: str) -> None:
    with Terminal([*COMMAND, "--admin", admin]) as terminal:
        terminal.until("good: The only backend is up.")
        terminal.press("d")
        terminal.until("only: drain done; e enables it")
        terminal.until("▽ draining")
        terminal.press("e")
        terminal.until("only: enable done")
        terminal.press("m")
        terminal.until("simple")
        terminal.press("\r")
        terminal.until("ready on 1 of 1 backends")
        terminal.press("c")
        terminal.until("operator")
        terminal.press("q")
        assert terminal.wait(30) == 0
    assert terminal.text.endswith("\x1b[?25h\x1b[?1049l")


def test_scripts_get_it_once_as_text_or_as_json(admin: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "--once", "--admin", admin, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, env=ENVIRONMENT, check=False
        )

    text = run()
    assert (text.returncode, text.stderr) == (0, "")
    assert "● up         only" in text.stdout
    documents = run("--json")
    assert documents.returncode == 0
    document = json.loads(documents.stdout)
    assert (document["admin"], document["summary"]["verdict"]) == (admin, "good")
    assert document["window_s"] > 0
    lost = run("--json", "--admin", "127.0.0.1:1")
    assert lost.returncode == 1
    assert "cannot reach the admin API at 127.0.0.1:1" in lost.stderr
