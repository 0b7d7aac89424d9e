"""The file that says which process serves, for those who send it signals."""

from __future__ import annotations

import os
from pathlib import Path

from lb.domain.errors import LoadBalancerError
from lb.net.files import read_text, touching


class PidFileError(LoadBalancerError):
    """The file cannot be written; the message says which and why."""


def write_pid(path: str, pid: int) -> None:
    """Say that it is the process with this id, at once for whoever reads it.

    Raises:
        PidFileError: it cannot be written.
    """
    fresh = Path(f"{path}.{os.getpid()}")
    try:
        with touching(path):
            fresh.write_text(f"{pid}\n")
            fresh.replace(path)
    except OSError as error:
        raise PidFileError(f"cannot write the PID file {path}: {error.strerror}") from error


def remove_pid(path: str) -> None:
    """Remove the file, unless another process has taken over."""
    try:
        if read_text(path).strip() == str(os.getpid()):
            os.unlink(path)
    except (OSError, UnicodeDecodeError):
        return
