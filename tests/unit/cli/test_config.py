"""`triton-lb config`: the effective configuration of a file, and of a running process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from lb.cli.main import main
from lb.settings.reading import read_settings
from tests.unit.cli.test_admin import answering

ROOT = Path(__file__).parents[3]
FILE = """\
listen: {http: '127.0.0.1:8000'}
backends:
  - {http: '${HOST}:8000', headers: {authorization: 'Bearer hunter2hunter2'}}
  - {name: b, http: 'b:1', health: {fall: 7}}
health: {interval: 500ms}
access: {tokens: [{name: team, token: '${TOKEN}'}, {name: ops, file: '/run/${TOKEN}'}]}
"""


def read_nothing(path: str) -> str:
    raise FileNotFoundError(path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOST", "gpu-1")
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    path = tmp_path / "lb.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize("as_json", [False, True])
def test_defaults_are_filled_in_and_secrets_are_masked(
    as_json: bool, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", file, *(["--json"] if as_json else [])]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "0123456789abcdef" not in text
    shown = json.loads(text) if as_json else yaml.safe_load(text)
    first, second = shown["backends"]
    assert (first["name"], first["http"], first["weight"]) == ("gpu-1:8000", "gpu-1:8000", 1.0)
    assert first["headers"] == {"authorization": "***"}
    assert (first["health"]["interval"], second["health"]["interval"]) == ("500ms", "500ms")
    assert (first["health"]["fall"], second["health"]["fall"]) == (3, 7)
    assert shown["access"]["tokens"] == [
        {"name": "team", "token": "***", "roles": ["infer"]},
        {"name": "ops", "file": "/run/${TOKEN}", "roles": ["infer"]},
    ]
    assert shown["shutdown"] == {"pre_stop_delay": "0s", "drain": "20s"}
    assert shown["limits"]["head_bytes"] == "32KiB"


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_what_is_shown_means_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "config" / f"{name}.yaml"
    assert main(["config", str(path)]) == 0
    first = capsys.readouterr().out
    shown = read_settings(first, {}, read_nothing)
    meant = read_settings(path.read_text(), {}, read_nothing)
    secrets = {"headers": {}} if name == "full" else {}
    for ours, theirs in zip(shown.backends, meant.backends, strict=True):
        assert shown.health_of(ours) == meant.health_of(theirs)
        update = {"name": "", "health": meant.health, **secrets}
        assert ours.model_copy(update=update) == theirs.model_copy(update=update)
    assert shown.model_copy(update={"backends": ()}) == meant.model_copy(update={"backends": ()})


def test_problems_of_a_file_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("listen: 7\n"))
    assert main(["config", "-"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("<stdin>")


def test_a_running_process_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"listen": {"http": "127.0.0.1:8000"}}') as (address, asked):
        assert main(["config", "--admin", address]) == 0
        assert main(["config", "--admin", address, "--json"]) == 0
    assert asked == ["GET /api/v1/config"] * 2
    assert capsys.readouterr().out == (
        'listen:\n  http: 127.0.0.1:8000\n{"listen": {"http": "127.0.0.1:8000"}}\n'
    )


def test_an_older_process_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"error": "there is no such path"}', 404) as (address, _):
        assert main(["config", "--admin", address]) == 1
    assert capsys.readouterr().err == (
        f"triton-lb: the process at {address} cannot show its configuration\n"
    )
