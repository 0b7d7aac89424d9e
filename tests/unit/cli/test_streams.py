"""Standard streams that are closed when the process starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.fakes.process import ENVIRONMENT

PROGRAM = """
import json, os, sys
from lb.cli.streams import open_standard_streams
open_standard_streams()
print("out", file=sys.stdout, flush=True)
print("err", file=sys.stderr, flush=True)
sys.stdin.read()
told = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]
told.append([os.get_inheritable(fd) for fd in range(3)])
open(sys.argv[1], "w").write(json.dumps(told))
"""


@pytest.mark.parametrize("closed", list(product([False, True], repeat=3)))
def test_what_is_closed_is_opened_on_dev_null(
    tmp_path: Path, closed: tuple[bool, bool, bool]
) -> None:
    redirections = " ".join(
        text for text, is_closed in zip(("0<&-", "1>&-", "2>&-"), closed, strict=True) if is_closed
    )
    told = tmp_path / "told"
    done = subprocess.run(
        ("sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", PROGRAM, str(told)),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        capture_output=True,
        check=True,
    )
    *targets, inheritable = json.loads(told.read_text())
    assert [target == "/dev/null" for target in targets] == list(closed)
    assert inheritable == [True] * 3
    assert done.stdout == (b"" if closed[1] else b"out\n")
    assert done.stderr == (b"" if closed[2] else b"err\n")


def run(
    *arguments: str, output: int, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        (sys.executable, "-m", "lb.cli.main", *arguments),
        env={**ENVIRONMENT, "PYTHONIOENCODING": encoding},
        stdout=output,
        stderr=subprocess.PIPE,
        check=False,
    )


def test_a_reader_that_needs_no_more_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("schema", output=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = run("schema", output=full.fileno())
    assert done.returncode == 1
    assert done.stderr == b"triton-lb: cannot write the output: No space left on device\n"


def test_what_a_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    config = tmp_path / "lb.yaml"
    backend = "{name: \u2715, http: '127.0.0.1:1'}"
    listen = "{http: '127.0.0.1:0'}"
    config.write_text(f"listen: {listen}\nbackends: [{backend}]\n", encoding="utf-8")
    with (tmp_path / "out").open("wb") as out:
        done = run("config", str(config), output=out.fileno(), encoding="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
