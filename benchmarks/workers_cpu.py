"""CPU per request of a service with several workers, beside one process.

    python -m benchmarks.workers_cpu [--rounds N] [--workers N]

`wrk` sends small inferences over 32 connections, through triton-lb, to three simulated Tritons
whose model is scheduled. Both services run all the time and are measured in turns. Printed are
microseconds of CPU (user and system) per request of the processes that serve clients, the median of
all rounds, what they take without requests, and the scaling: N times the CPU of one process,
divided by the CPU with N workers and by how unevenly these were used.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from argparse import ArgumentParser
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.fakes.serving import Serving

_BODY: Final = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)
_CONNECTIONS: Final = 32
_SECONDS: Final = 3
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Service:
    """A running triton-lb."""

    def __init__(self, folder: Path, backends: list[dict[str, str]], workers: int) -> None:
        self.rates: list[float] = []
        """Requests per second of each measurement."""
        listen = dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0")
        config: dict[str, Any] = {"workers": workers, "listen": listen, "backends": backends}
        self.serving = Serving(folder, config, name=f"workers-{workers}")
        self.address = self.serving.until_serving()["http"]
        started = re.findall(r"process started role=worker-\d+ pid=(\d+)", self.serving.log)
        self.pids = [int(pid) for pid in started] or [self.serving.process.pid]

    def idle(self, seconds: float) -> float:
        """Milliseconds of CPU per second that all take without requests."""
        before = sum([cpu_s(pid) for pid in self.pids])
        time.sleep(seconds)
        return (sum([cpu_s(pid) for pid in self.pids]) - before) / seconds * 1e3

    def measure(self, script: Path, seconds: int) -> tuple[float, float]:
        """Microseconds of CPU per request, and the busiest process's part times their number."""
        before = [cpu_s(pid) for pid in self.pids]
        url = f"http://{self.address}/v2/models/simple/infer"
        command = (
            *("wrk", "-t", "1", "-c", str(_CONNECTIONS), "-d", f"{seconds}s"),
            *("-s", str(script), url),
        )
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        requests = re.search(r"(\d+) requests in", said)
        if requests is None or "Non-2xx" in said:
            sys.exit(said)
        self.rates.append(int(requests[1]) / seconds)
        spent = [cpu_s(pid) - since for pid, since in zip(self.pids, before, strict=True)]
        total = sum(spent)
        return total / int(requests[1]) * 1e6, max(spent) * len(spent) / total


def has_line(log: Path) -> bool:
    """Whether a log has a whole line."""
    return log.read_text().endswith("\n")


def simulators(stack: ExitStack, folder: Path, count: int) -> list[dict[str, str]]:
    """Start simulated Tritons, as backends of a configuration."""
    found = []
    for number in range(count):
        http, grpc, metrics = free_ports(3)
        ports = ("--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics)
        log = folder / f"triton-{number}.log"
        command = (sys.executable, "-m", "lb.simulator", *map(str, ports), "--models", "simple")
        process = ChildProcess(command, log=log, env=ENVIRONMENT)
        stack.callback(process.close)
        wait_until(partial(has_line, log), what="the simulator")
        found.append({"name": f"triton-{number}", "http": f"127.0.0.1:{http}"})
    return found


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        script = folder / "post.lua"
        script.write_text(
            f"wrk.method = 'POST'\nwrk.body = '{_BODY}'\n"
            "wrk.headers['Content-Type'] = 'application/json'\n"
        )
        backends = simulators(stack, folder, 3)
        services = [Service(folder, backends, count) for count in (1, options.workers)]
        for service in services:
            stack.callback(service.serving.process.close)
            service.measure(script, 1)
        took: list[list[float]] = [[], []]
        uneven: list[float] = []
        for _ in range(options.rounds):
            for place, service in enumerate(services):
                cpu, share = service.measure(script, _SECONDS)
                took[place].append(cpu)
                if place:
                    uneven.append(share)
        one, several = median(took[0]), median(took[1])
        rates = [median(service.rates) for service in services]
        idle = [service.idle(_SECONDS) for service in services]
    print("| workers | requests/s | idle, ms/s | CPU per request | unevenness | scaling |")
    print("|---:|---:|---:|---:|---:|---:|")
    print(f"| 1 | {rates[0]:.0f} | {idle[0]:.1f} | {one:.1f} | | |")
    scaling = options.workers * one / several / median(uneven)
    print(
        f"| {options.workers} | {rates[1]:.0f} | {idle[1]:.1f} | {several:.1f} | "
        f"{median(uneven):.2f} | {scaling:.2f} |"
    )


if __name__ == "__main__":
    main()
