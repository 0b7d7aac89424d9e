"""Standard streams that are closed when the process starts."""

from __future__ import annotations

import json
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
