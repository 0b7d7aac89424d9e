"""A process of a service with workers ends with its supervisor, also before it can hear it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from lb.runtime.workers.parent import VARIABLE

_CHILD = (
    "import os, signal\n"
    "from lb.runtime.workers.parent import end_with_supervisor\n"
    "end_with_supervisor(os.environ)\n"
    "print('imports', flush=True)\n"
    "signal.pause()\n"
)
_PARENT = (
    "import os, signal, socket, subprocess, sys\n"
    "ours, theirs = socket.socketpair()\n"
    f"environment = {{**os.environ, '{VARIABLE}': str(theirs.fileno())}}\n"
    "fds = (theirs.fileno(),)\n"
    "subprocess.Popen((sys.executable, '-c', sys.argv[1]), env=environment, pass_fds=fds)\n"
    "theirs.close()\n"
    "signal.pause()\n"
)


def test_a_process_that_still_imports_ends_with_its_supervisor() -> None:
    parent = subprocess.Popen((sys.executable, "-c", _PARENT, _CHILD), stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"imports\n"
        parent.kill()
        assert parent.stdout.read() == b""  # the child, which has it too, has ended


def test_a_process_whose_supervisor_has_died_before_does_not_start() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"what the supervisor had said")
        ours.close()
        done = subprocess.run(
            (sys.executable, "-m", "lb", "serve", "lb.yaml"),
            env={**os.environ, VARIABLE: str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            check=False,
        )
    assert done.returncode == -signal.SIGTERM
