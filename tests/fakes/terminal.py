"""A command at a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Sequence

from tests.fakes.process import ENVIRONMENT


class Terminal:
    """Runs a command whose input and output are a terminal; a context manager."""

    def __init__(self, command: Sequence[str], *, columns: int = 80, lines: int = 24) -> None:
        self._command = command
        self._size = (lines, columns)
        self.text = ""
        """All that was written, escape sequences included."""

    def __enter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(self._ours, self._size)
        self._process = subprocess.Popen(
            self._command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**ENVIRONMENT, "TERM": "xterm"},
            preexec_fn=os.setsid,
            pass_fds=(),
        )
        os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    def press(self, key: str) -> None:
        """Type; Ctrl-C is the signal that it is at a terminal."""
        if key == "\x03":
            self._process.send_signal(2)
        else:
            os.write(self._ours, key.encode())

    def until(self, *texts: str, timeout_s: float = 30.0) -> None:
        """Wait until one of some texts is written that was not before.

        Raises:
            TimeoutError: it does not come.
        """
        start, end = len(self.text), time.monotonic() + timeout_s
        while not any(text in self.text[start:] for text in texts):
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise TimeoutError(f"no {texts} in {self.text[-3000:]}")

    def read_for(self, seconds: float) -> None:
        """Read what is written meanwhile: a command whose output nobody reads stands still."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._read(left):
            pass

    def wait(self, timeout_s: float) -> int:
        """Read until the command ends, and return its exit code."""
        end = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < end:
            self._read(0.1)
        return self._process.wait(10.0)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return True
        try:
            self.text += os.read(self._ours, 65536).decode("utf-8", "replace")
        except OSError:  # the other side is closed
            return False
        return True
