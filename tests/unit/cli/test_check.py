"""`triton-lb check`: OK and 0, or every problem and 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.cli.check import check


def test_a_good_file_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text("listen: {http: '127.0.0.1:0'}\nbackends: [{http: 'a:1'}]\n")
    assert check(str(file)) == 0
    assert capsys.readouterr() == (f"OK: {file}\n", "")


def test_every_problem_of_a_bad_file_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text("listen:\n  http: x\nbackends:\n  - weight: 0\n")
    assert check(str(file)) == 1
    assert capsys.readouterr() == (
        f"{file}:2: listen.http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'x'\n"
        f"{file}:4: backends[0].weight: expected more than 0, got 0\n"
        f"{file}:4: backends[0]: at least one of http and grpc is needed\n",
        "",
    )
