"""Where and with what a run was made: versions, kernel, cores."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from math import inf
from pathlib import Path

from benchmarks.load.bench import Plan
from benchmarks.load.interpreter import serving
from benchmarks.load.processes import REPOSITORY, BenchError, tool
from benchmarks.load.proxies import version

_TOOLS = {"wrk": ["-v"], "h2load": ["--version"], "nghttpd": ["--version"], "openssl": ["version"]}


def describe(plan: Plan) -> dict[str, str]:
    """Versions and machine, for the head of the report.

    Raises:
        BenchError: a proxy or a load generator is not installed.
    """
    facts = {name: version(name) for name in plan.proxies}
    facts["python"] = f"{serving()} (the load generators run on {platform.python_version()})"
    for package in ("uvloop", "matplotlib"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "none"
    facts["tools"] = ", ".join(f"{name} {_tool_version(name)}" for name in _TOOLS)
    facts["commit"] = _commit()
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    facts["kernel"] = f"{platform.release()}, TCP {congestion}"
    facts["cpu"] = _cpu_model()
    facts["cores"] = (
        f"{os.cpu_count()} in all; proxy on {plan.cores.proxy}, load on {plan.cores.load},"
        f" backends on {plan.cores.backend}"
    )
    facts["backends"] = f"{plan.backends}, where the cell does not say"
    facts["rounds"] = f"{plan.rounds} of {plan.seconds:g} s, in turns"
    if plan.other_rounds != plan.rounds and not all(cell.core for cell in plan.cells):
        facts["rounds"] += f"; {plan.other_rounds} in cells that are not core"
    if plan.cells_s < inf:
        facts["rounds"] += "; 2 where the time was short"
    facts["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


def _tool_version(name: str) -> str:
    done = subprocess.run([tool(name), *_TOOLS[name]], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+\S*", done.stdout + done.stderr)
    if found is None:
        raise BenchError(f"{name} does not say its version")
    return found.group()


def _commit() -> str:
    argv = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
