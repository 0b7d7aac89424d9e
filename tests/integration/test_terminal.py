"""What people see of `serve` and `top` at a terminal of 80 columns, and programs without one."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, free_ports, wait_until
from tests.fakes.serving import Serving
from tests.fakes.terminal import Terminal

LB = (sys.executable, "-m", "lb")
COLOUR = re.compile(r"\x1b\[[34]\d")


@pytest.fixture
def config(triton: Ports) -> dict[str, Any]:
    """Two ports of one Triton, and an address where nobody is."""
    metrics, nobody = free_ports(2)
    good = {
        "name": "good",
        "http": f"127.0.0.1:{triton.http_port}",
        "grpc": f"127.0.0.1:{triton.grpc_port}",
    }
    listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    return {
        "listen": {**listen, "metrics": f"127.0.0.1:{metrics}"},
        "backends": [good, {"name": "absent", "http": f"127.0.0.1:{nobody}"}],
    }


@pytest.fixture
def file(tmp_path: Path, config: dict[str, Any]) -> str:
    path = tmp_path / "lb.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def is_ready(config: dict[str, Any]) -> bool:
    try:
        with urllib.request.urlopen(f"http://{config['listen']['metrics']}/readyz", timeout=30):
            return True
    except (OSError, urllib.error.URLError):
        return False


def test_serve_says_where_it_is_and_how_to_stop_it(file: str, config: dict[str, Any]) -> None:
    with Terminal([*LB, "serve", file]) as terminal:
        terminal.until("press it again to cut running requests")
        shown = terminal.text.splitlines()
        terminal.press("\x03")
        assert terminal.wait(30) == 0
    banner = shown[next(n for n, line in enumerate(shown) if line.startswith("triton-lb")) :]
    assert banner[:2] == [
        "triton-lb serves: 1 of 2 backends ready",
        "  not ready  absent (down)",
    ]
    assert f"  metrics    http://{config['listen']['metrics']}/metrics" in banner
    assert any(re.fullmatch(r"  page       http://127\.0\.0\.1:\d+/", line) for line in banner)
    assert len(banner) <= 8
    assert max(map(len, banner)) <= 80
    assert "INFO" not in "".join(shown)  # beside it there are warnings only
    assert "\x1b" not in terminal.text


def test_a_quiet_serve_shows_warnings_only(file: str, config: dict[str, Any]) -> None:
    with Terminal([*LB, "serve", "-q", file]) as terminal:
        wait_until(lambda: is_ready(config), timeout_s=30, what="readiness")
        terminal.press("\x03")
        assert terminal.wait(30) == 0
    lines = terminal.text.splitlines()
    assert lines
    assert all(" WARNING " in line and "absent" in line for line in lines)


def test_a_verbose_serve_tells_of_each_backend(file: str) -> None:
    with Terminal([*LB, "serve", "-v", file]) as terminal:
        terminal.until("press it again")
        terminal.press("\x03")
        assert terminal.wait(30) == 0
    assert re.search(r"DEBUG .*backend added backend=good", terminal.text)


def test_without_a_terminal_the_start_is_one_line(tmp_path: Path, config: dict[str, Any]) -> None:
    del config["backends"][1]
    running = Serving(tmp_path, config)
    try:
        running.until_serving()
        (line,) = running.log.splitlines()
    finally:
        running.process.close()
    assert " INFO lb.runtime.process serving " in line
    assert " up=1 backends=1 " in line


def test_tables_keep_to_eighty_columns(tmp_path: Path, config: dict[str, Any]) -> None:
    running = Serving(tmp_path, config)
    try:
        command = [*LB, "backends", "--admin", running.until_serving()["admin"]]
        with Terminal(command) as terminal:
            assert terminal.wait(30) == 0
        plain = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    finally:
        running.process.close()
    lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(plain.stdout.splitlines()) == 3
    assert plain.stdout.endswith(" refused the connection\n")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_top_has_colours_unless_they_are_not_wanted(
    tmp_path: Path, config: dict[str, Any], no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Serving(tmp_path, config)
    monkeypatch.setitem(ENVIRONMENT, "NO_COLOR", no_color)
    try:
        admin = running.until_serving()["admin"]
        with Terminal([*LB, "top", "--admin", admin]) as terminal:
            terminal.until("degraded")
            terminal.until("degraded")
            terminal.press("q")
            assert terminal.wait(30) == 0
    finally:
        running.process.close()
    assert bool(COLOUR.search(terminal.text)) is not bool(no_color)
    assert "\x1b[7m" in terminal.text  # the selected row
