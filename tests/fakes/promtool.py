"""`promtool check metrics`, of the Debian package prometheus."""

from __future__ import annotations

import shutil
import subprocess


def criticism_of(page: bytes) -> str:
    """What promtool finds wrong with a page of metrics; empty when it is content."""
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: install the Debian package prometheus"
    check = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    said = (check.stdout + check.stderr).decode()
    assert (check.returncode == 0) == (not said)
    return said
