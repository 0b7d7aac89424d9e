"""The command line: what each command is given, exit codes, and that each loads only its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lb.cli.main import build_parser, main
from lb.settings.json_schema import json_schema

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "--config", "a.yaml"], {"config": "a.yaml", "backend": [], "http": None}),
        (
            ["serve", "--backend", "a:1", "--backend", "b:1", "--http", "c:2", "--admin", "d:3"],
            {"config": None, "backend": ["a:1", "b:1"], "http": "c:2", "admin": "d:3"},
        ),
        (["serve", "a.yaml"], {"config": None, "file": "a.yaml"}),
        (["serve", "-c", "a.yaml"], {"config": "a.yaml", "file": None}),
        (["check", "a.yaml"], {"file": "a.yaml", "syntax_only": False}),
        (["demo"], {"backends": 3, "once": False}),
        (["demo", "--backends", "5", "--once"], {"backends": 5, "once": True}),
        (["backends"], {"admin": None, "all": False, "json": False}),
        (["queue", "--json"], {"admin": None, "json": True}),
        (["drain", "gpu-0"], {"name": "gpu-0", "action": "drain", "admin": None}),
        (
            ["status", "--all", "--admin", "a:1", "--admin", "b:1"],
            {"admin": ["a:1", "b:1"], "all": True},
        ),
        (["models", "gpu-0"], {"name": "gpu-0", "admin": None}),
        (
            ["enable", "gpu-0", "--admin", "http://a:1"],
            {"action": "enable", "admin": ["http://a:1"]},
        ),
        (["disable", "gpu-0"], {"name": "gpu-0", "action": "disable"}),
    ],
)
def test_arguments_are_understood(argv: list[str], expected: dict[str, object]) -> None:
    arguments = vars(build_parser().parse_args(argv))
    assert {name: arguments[name] for name in expected} == expected


def test_check_and_serve_return_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "config" / "minimal.yaml")]) == 0
    assert main(["check", "/none"]) == 1
    assert main(["serve", "--config", "/none", "--http", "127.0.0.1:0"]) == 1
    assert main(["serve", "--backend", "x", "--grpc", "y"]) == 1
    assert "--grpc" in capsys.readouterr().err


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_says_what_runs(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out.startswith("triton-lb")


@pytest.mark.parametrize("module", ["lb", "lb.cli.main"])
def test_the_command_runs_as_a_module_and_loads_only_what_it_needs(module: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-X", "importtime", "-m", module),
            *("check", "--syntax-only", "config/full.yaml"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "OK: config/full.yaml\n")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lb.settings.model" in loaded
    assert not loaded & {"asyncio", "aiohttp", "grpc", "lb.runtime.process"}
