"""Slices of GPUs that commands start and stop: simulated Tritons as processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.fakes.process import free_ports

_START = """
import os, subprocess, sys
name, port, folder, python, *speed = sys.argv[1:]
with open(f"{folder}/started", "a") as file:
    file.write(name + "\\n")
with open(f"{folder}/environment", "w") as file:
    file.write("\\n".join(sorted(os.environ)))
server = subprocess.Popen(
    [python, "-m", "lb.simulator", "--http-port", port, *speed],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
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
    """Simulated Tritons that commands start and stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, script in (("start", _START), ("stop", _STOP), ("hang", _HANG)):
            (folder / f"{name}.py").write_text(script)

    def backend(self, name: str, rank: int, *options: str, timeout: str = "60s") -> dict[str, Any]:
        port = free_ports(1)[0]
        folder, python = str(self.folder), sys.executable
        start = [python, f"{folder}/start.py", name, str(port), folder, python, *options]
        return {
            "name": name,
            "http": f"127.0.0.1:{port}",
            "standby": rank,
            "activate": {"exec": start, "timeout": timeout},
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
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                pass
