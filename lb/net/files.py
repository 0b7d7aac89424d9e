"""Seeing that a file has changed, on every file system and through symbolic links."""

from __future__ import annotations

import os

FilePrint = tuple[int, ...] | None
"""What tells one state of a file from another; None where it is missing."""


def print_of(path: str) -> FilePrint:
    """The state that a file is in. Costs a system call."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    # A change of the mode alone can make a file readable: hence the time of that, too.
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip
