"""Which Python triton-lb runs with: one that was built with its optimisations, as users have it.

The interpreter of the environment may be a plain build of CPython (pyenv makes these unless told
otherwise), which costs triton-lb up to a fifth more. `tools/setup_bench.sh` then makes another
environment, from an optimised Python of the same version if the machine has one. What was compiled
for one of the two runs on the other: the binary interface of extensions is that of the version.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.processes import REPOSITORY

SERVING = REPOSITORY / ".venvs" / "serving" / "bin" / "python"
"""Made by tools/setup_bench.sh where the environment's own interpreter is a plain build."""

_BUILT = Path(__file__).with_name("built.py")


@dataclass(frozen=True)
class Interpreter:
    """A Python; `tag` names its binary interface, as in `cpython-311`."""

    path: Path
    version: str
    is_optimised: bool
    tag: str

    def __str__(self) -> str:
        if self.is_optimised:
            return f"{self.version}, an optimised build"
        return (
            f"{self.version}, built WITHOUT optimisations, and there is no other here: with that"
            " of Debian or of the official images triton-lb costs up to a fifth less"
        )


def ask(python: Path) -> Interpreter | None:
    """What an interpreter says of itself; None if it cannot be run."""
    try:
        done = subprocess.run([python, _BUILT], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Interpreter(python, **json.loads(done.stdout))


def choose(own: Interpreter, other: Interpreter | None) -> Interpreter:
    """The one that serves: ours unless only the other is optimised, and runs the same binaries."""
    if own.is_optimised or other is None or not other.is_optimised or other.tag != own.tag:
        return own
    return other


@functools.cache
def serving() -> Interpreter:
    """The interpreter that runs every triton-lb of this benchmark."""
    own = ask(Path(sys.executable))
    assert own is not None, "this very interpreter"
    return choose(own, ask(SERVING))
