"""Child processes that end with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final

START_S: Final = 60.0
"""How long a process may take to start, in seconds: a loaded machine imports slowly."""
END_S: Final = 10.0
"""How long a process may take to end after SIGTERM before it is killed, in seconds."""
_POLL_S: Final = 0.02
_LOG_LINES: Final = 15
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_BIND: Final = f"""\
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGTERM)})
os.execv(sys.argv[1], sys.argv[1:])
"""


class StartError(Exception):
    """A process did not start. The text ends with the last lines that it wrote."""


def ending_with_parent(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that does the same, and that the kernel ends when its parent ends.

    A `preexec_fn` would need a fork. In a process that has used gRPC, a fork runs gRPC's handlers,
    and the child may hang before it executes anything. Without one, Python uses vfork.
    """
    if sys.platform != "linux":
        return tuple(command)
    return (sys.executable, "-I", "-S", "-c", _BIND, *command)


class Child:
    """One child process, whose output goes to a temporary file."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._process = subprocess.Popen(
            ending_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the parent alone, which then ends its children in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What it has written so far, to standard output and standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the process is ready.

        Raises:
            StartError: it ended, or took longer than `START_S`.
        """
        deadline = time.monotonic() + START_S
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                last = "\n".join(self.output.splitlines()[-_LOG_LINES:])
                how = "is not ready" if self.is_running else "ended"
                raise StartError(f"{self.name} {how}\n{last}")
            time.sleep(_POLL_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGKILL or SIGSTOP."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask the process to end; a stopped one goes on first."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process, and kill it if it does not end within `END_S`."""
        self.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
