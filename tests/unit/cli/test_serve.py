"""`triton-lb serve`: settings that cannot be used end in sentences on standard error, and 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.cli.serve import ServeOptions, serve


def test_a_bad_file_is_told_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text("listen: {http: '127.0.0.1:0'}\nbackends: []\nretry: {attempts: 0}\n")
    assert serve(ServeOptions(config=str(file))) == 1
    assert capsys.readouterr() == (
        "",
        f"{file}:2: backends: at least one is needed\n"
        f"{file}:3: retry.attempts: expected at least 1, got 0\n",
    )


def test_an_unreadable_file_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(ServeOptions(config="/none/lb.yaml")) == 1
    assert capsys.readouterr().err == "/none/lb.yaml: cannot be read: No such file or directory\n"


def test_bad_flags_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(ServeOptions(backends=["127.0.0.1"], listen={"http": "y:z"})) == 1
    assert capsys.readouterr().err == (
        "triton-lb: --http: port must be 0 to 65535, got 'z'\n"
        "triton-lb: --backend 127.0.0.1: expected HOST:PORT, [IPV6]:PORT or unix:PATH, "
        "got '127.0.0.1'\n"
    )
