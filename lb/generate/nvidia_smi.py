"""Asks `nvidia-smi` what this machine has."""

from __future__ import annotations

import subprocess
from typing import Final

from lb.generate.devices import QUERY, GenerateError

_TIMEOUT_S: Final = 60.0
"""Without persistence mode the driver starts every GPU first."""
_NOTHING_FOUND: Final = 6
"""Exit code of nvidia-smi where there is no GPU."""


def read_nvidia_smi(command: str = "nvidia-smi") -> str | None:
    """What `nvidia-smi -L` and the query for MIG modes print; None where it is not installed.

    Raises:
        GenerateError: it is installed and fails: a machine with a broken driver is not one
            without GPUs.
    """
    listed = _run(command, "-L")
    if listed is None:
        return None
    modes = _run(command, QUERY, "--format=csv,noheader") or ""
    return f"{listed}\n{modes}"


def _run(*command: str) -> str | None:
    asked = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GenerateError(f"`{asked}` cannot be run: {error}") from error
    if done.returncode not in (0, _NOTHING_FOUND):
        said = (done.stdout + done.stderr).strip() or "nothing"
        raise GenerateError(f"`{asked}` ended with {done.returncode} and said: {said}")
    return done.stdout
