"""Configuration files from disk: what is read, and what is said when that fails."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lb.cli.loading import load_settings, print_problems
from lb.settings.problems import Problem, SettingsError

TEXT = "listen: {http: '127.0.0.1:0'}\nbackends: [{http: '${LB_TEST_HOST}:1'}]\n"


def test_environment_and_files_are_the_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    config = tmp_path / "lb.yaml"
    config.write_text(TEXT.replace("}]", f", headers: {{x: '${{file:{token}}}'}}}}]"))
    monkeypatch.setenv("LB_TEST_HOST", "gpu-0")
    [spec] = load_settings(str(config), {}).specs()
    assert str(spec.http) == "gpu-0:1"
    assert spec.headers == (("x", "secret"),)


def test_given_listeners_reach_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LB_TEST_HOST", "gpu-0")
    config = tmp_path / "lb.yaml"
    config.write_text(TEXT)
    listen = load_settings(str(config), {"grpc": "127.0.0.1:7"}).listen
    assert listen.grpc is not None
    assert listen.grpc.address.port == 7


def test_an_unreadable_file_is_one_problem(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, message in (
        (tmp_path / "none", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: it is a directory, not a regular file"),
        (binary, "cannot be read: it is not UTF-8 text"),
    ):
        with pytest.raises(SettingsError) as caught:
            load_settings(str(path), {})
        assert caught.value.problems == (Problem("", message),)


def test_problems_are_printed_one_per_line_with_file_and_line() -> None:
    stream = io.StringIO()
    error = SettingsError([Problem("a[0].b", "is required", 7), Problem("", "the file is empty")])
    print_problems("lb.yaml", error, stream)
    assert stream.getvalue() == "lb.yaml:7: a[0].b: is required\nlb.yaml: the file is empty\n"
