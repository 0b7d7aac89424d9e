"""Inputs that broke something once, as data: `regressions/TARGET.txt`.

A line is an input as Python writes bytes, `b"..."`; empty lines and lines that start with `#`,
which tell what was wrong, are left out.
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent / "regressions"


def regressions(name: str) -> tuple[bytes, ...]:
    """What once broke the target of this name."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        return ()
    return tuple(
        ast.literal_eval(line)
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    )
