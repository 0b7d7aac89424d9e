"""Reading regular files only, and seeing that a file has changed.

All this works on every file system and through symbolic links, as Kubernetes replaces files.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from lb.settings.problems import shown
from lb.settings.tree import MAX_CHARACTERS

FilePrint = tuple[int, ...] | None
"""What tells one state of a file from another; None where it is missing."""

TOUCHED: Final[dict[int, tuple[str, float]]] = {}
"""The file that a thread waits for just now and since when (monotonic), by the thread's identifier.
It says which file hangs, if one does."""

_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO or pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
)


@contextmanager
def touching(path: str) -> Iterator[None]:
    """Note that the file system is asked for a file, which may take for ever."""
    ident = threading.get_ident()
    TOUCHED[ident] = shown(path), monotonic()
    try:
        yield
    finally:
        TOUCHED.pop(ident, None)


def read_text(
    path: str, most: int = MAX_CHARACTERS + 1, *, encoding: str = "utf-8", errors: str = "strict"
) -> str:
    """The text of a regular file.

    Args:
        path: of the file.
        most: characters after which it is cut; by default one more than a configuration may have.
        encoding: of the file.
        errors: what becomes of bytes that are none of that encoding, as for `open`.

    Raises:
        OSError: the file cannot be read, or is no regular one.
        UnicodeDecodeError: it has another encoding.
    """
    with touching(path), open(path, encoding=encoding, errors=errors, opener=_open_regular) as file:
        return file.read(most)


def print_of(path: str) -> FilePrint:
    """The state that a file is in. Costs a system call."""
    try:
        with touching(path):
            status = os.stat(path)
    except OSError:
        return None
    # A change of the mode alone can make a file readable: hence the time of that, too.
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file, and no other: reading a FIFO would wait for its writer, perhaps for
    ever, and a device may never end."""
    number = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return number
    os.close(number)
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
    raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", path)
