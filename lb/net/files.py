"""Reading and replacing regular files only, and seeing that a file has changed.

All this works on every file system and through symbolic links, as Kubernetes replaces files.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, TypeVar, cast

from lb.settings.problems import shown
from lb.settings.tree import MAX_CHARACTERS
from lb.telemetry.line_file import APPEND_FLAGS, legible

ANSWER_S: Final = 5.0
"""A file that has not answered for so long hangs. Disks that have to start up need less."""

FilePrint = tuple[int, ...] | None
"""What tells one state of a file from another; None where it is missing."""

TOUCHED: Final[dict[int, tuple[str, float]]] = {}
"""The file that a thread waits for just now and since when (monotonic), by the thread's identifier.
It says which file hangs, if one does."""

_T = TypeVar("_T")

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
    with touching(path), open(path, encoding=encoding, errors=errors, opener=open_regular) as file:
        return file.read(most)


def answer_of(
    work: Callable[[], _T],
    path: str,
    *,
    discard: Callable[[_T], object] = lambda _: None,
    timeout_s: float = ANSWER_S,
) -> _T:
    """Do some work with a file that must not hold up the caller for ever, as at the start of the
    process, and return or raise what it returns or raises.

    Args:
        work: done in a daemon thread; it may wait for the file.
        path: of the file.
        discard: called in that thread with a result that came too late.
        timeout_s: how long the caller waits.

    Raises:
        OSError: the file does not answer, or no thread can be started.
    """
    done: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()
    lock, is_late = threading.Lock(), False

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as why:  # it belongs to the caller
            error = why
        with lock:
            done.put((result, error))
        if is_late and error is None:
            discard(cast("_T", result))

    try:
        threading.Thread(target=run, name=f"file:{shown(path)}", daemon=True).start()
    except RuntimeError as limit:  # of the system
        raise OSError(errno.EAGAIN, str(limit), path) from limit
    try:
        result, raised = done.get(timeout=timeout_s)
    except Empty:
        with lock:
            is_late = done.empty()
        if is_late:
            why = "it does not answer: its file system hangs"
            raise OSError(errno.ETIMEDOUT, why, path) from None
        result, raised = done.get()
    if raised is not None:
        raise raised
    return cast("_T", result)


def check_appendable(path: str) -> None:
    """See that lines can be appended to a file, without making one that is not there.

    Raises:
        OSError: they cannot; for a FIFO that nobody reads and for a file that does not answer, too.
    """
    answer_of(lambda: _try_to_append(path), path)


def _try_to_append(path: str) -> None:
    try:
        os.close(os.open(path, APPEND_FLAGS & ~os.O_CREAT))
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "its folder is not writable", path) from None
    except OSError as error:
        raise legible(error) from error


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


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, and no other, as `opener` of `open`: a FIFO would wait for its other
    end, perhaps for ever, and a device may never end.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    number = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return number
    os.close(number)
    raise _not_regular(path, mode)


def replace_text(path: str, text: str) -> None:
    """Write a file as a whole: who reads it meanwhile gets the old or the new text. It may be new,
    and it must be no device, of which a file would take the place.

    Raises:
        OSError: it cannot be written, or something has its name that is no regular file.
    """
    fresh = f"{path}.{os.getpid()}"
    with touching(path):
        _check_replaceable(path)
        try:
            with open(fresh, "w", encoding="utf-8", opener=open_regular) as file:
                file.write(text)
            os.replace(fresh, path)
        except OSError:
            Path(fresh).unlink(missing_ok=True)
            raise


def _check_replaceable(path: str) -> None:
    """See that another file may get this name: a device such as `/dev/null` would be gone.

    Raises:
        OSError: something has it that is no regular file.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode)


def _not_regular(path: str, mode: int) -> OSError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", path)
