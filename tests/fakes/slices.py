"""Slices of GPUs that commands start and stop: Tritons as processes, simulated ones or others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fakes.process import free_ports

_START = """
import os, subprocess, sys
name, folder, *command = sys.argv[1:]
with open(f"{folder}/started", "a") as file:
    file.write(name + "\\n")
with open(f"{folder}/environment", "w") as file:
    file.write("\\n".join(sorted(os.environ)))
with open(f"{folder}/{name}.log", "a") as log:
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
with open(f"{folder}/{name}.pid", "w") as file:
    file.write(str(server.pid))
"""
_STOP = """
import os, signal, sys
name, folder = sys.argv[1:]
try:
    with open(f"{folder}/{name}.pid") as file:
        os.kill(int(file.read()), signal.SIGTERM)
except (FileNotFoundError, ProcessLookupError):
    pass
with open(f"{folder}/stopped", "a") as file:
    file.write(name + "\\n")
"""
_HANG = """
import subprocess, sys, time
folder, python = sys.argv[1:]
child = subprocess.Popen([python, "-c", "import time; time.sleep(600)"])
with open(f"{folder}/hung.pid", "w") as file:
    file.write(str(child.pid))
time.sleep(600)
"""


class Slices:
    """Tritons that commands start and stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, script in (("start", _START), ("stop", _STOP), ("hang", _HANG)):
            (folder / f"{name}.py").write_text(script)

    def backend(self, name: str, rank: int, *options: str, timeout: str = "60s") -> dict[str, Any]:
        """The settings of a backend that is a simulated Triton."""
        port = free_ports(1)[0]
        command = [sys.executable, "-m", "lb.simulator", "--http-port", str(port), *options]
        return self.started_by(command, name, rank, timeout) | {"http": f"127.0.0.1:{port}"}

    def started_by(
        self, command: Sequence[str], name: str, rank: int, timeout: str = "60s"
    ) -> dict[str, Any]:
        """The settings of a backend whose server this command is; its addresses are missing."""
        folder, python = str(self.folder), sys.executable
        return {
            "name": name,
            "standby": rank,
            "activate": {
                "exec": [python, f"{folder}/start.py", name, folder, *command],
                "timeout": timeout,
            },
            "deactivate": {"exec": [python, f"{folder}/stop.py", name, folder]},
        }

    def hanging(self, name: str, rank: int) -> dict[str, Any]:
        command = [sys.executable, f"{self.folder}/hang.py", str(self.folder), sys.executable]
        return {
            **self.backend(name, rank),
            "activate": {"exec": command, "timeout": "2s"},
        }

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def kill_all(self) -> None:
        for file in self.folder.glob("*.pid"):
            for kill in (os.killpg, os.kill):  # a server has a group, with processes of its own
                with suppress(ProcessLookupError, ValueError):
                    kill(int(file.read_text()), signal.SIGKILL)
