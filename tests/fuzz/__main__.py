"""Run every target under atheris, one after the other, and print what came of it.

python -m tests.fuzz [--seconds 60] [--folder build/fuzz] [TARGET...]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import MAX_SIZE, TIME_LIMIT_S
from tests.fuzz.targets import TARGETS

_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_PROGRESS = re.compile(r"^#(\d+)\s.*?\bcov: (\d+)", re.MULTILINE)
_FINDING = ("crash-*", "timeout-*", "oom-*")
_START_S = 120
"""What a child may take beyond its time: starting, and reading a large corpus."""


@dataclass(frozen=True)
class Result:
    """What one run of a target gave."""

    name: str
    seconds: float
    executions: int
    edges: int
    findings: tuple[Path, ...]
    broken: bool
    """It ended badly without leaving an input behind."""


def run(name: str, seconds: int, folder: Path) -> Result:
    """Fuzz one target; inputs that break it and the log stay in its folder."""
    place = folder / name
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    before = _findings(place)
    started = time.monotonic()
    with (place / "log").open("w") as log:
        child = subprocess.run(
            (
                *(sys.executable, "-m", "tests.fuzz.coverage", name, str(corpus)),
                f"-max_total_time={seconds}",
                f"-max_len={MAX_SIZE}",
                f"-timeout={TIME_LIMIT_S:.0f}",
                "-rss_limit_mb=1024",
                "-print_final_stats=1",
                f"-artifact_prefix={place}/",
            ),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=seconds + _START_S,
            check=False,
        )
    text = (place / "log").read_text(errors="replace")
    progress = _PROGRESS.findall(text)
    executions = _EXECUTIONS.search(text)
    found = _findings(place) - before
    return Result(
        name,
        time.monotonic() - started,
        int(executions[1] if executions else progress[-1][0] if progress else 0),
        int(progress[-1][1]) if progress else 0,
        tuple(sorted(found)),
        child.returncode != 0 and not found,
    )


def _findings(place: Path) -> set[Path]:
    return {path for pattern in _FINDING for path in place.glob(pattern)}


def table(results: list[Result]) -> str:
    """The results for people."""
    lines = [
        f"{'target':<18}{'executions':>12}{'exec/s':>9}{'edges':>7}{'findings':>10}{'seconds':>9}"
    ]
    lines += [
        f"{result.name:<18}{result.executions:>12,}{result.executions / result.seconds:>9,.0f}"
        f"{result.edges:>7}{len(result.findings) + result.broken:>10}{result.seconds:>9.0f}"
        for result in results
    ]
    total = sum(result.executions for result in results)
    bad = sum(len(result.findings) + result.broken for result in results)
    seconds = sum(result.seconds for result in results)
    lines.append(f"{'all':<18}{total:>12,}{'':>16}{bad:>10}{seconds:>9.0f}")
    return "\n".join(lines)


def main() -> int:
    """Returns 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    arguments = parser.parse_args()
    results = []
    for name in arguments.targets or TARGETS:
        results.append(run(name, arguments.seconds, arguments.folder))
        print(table(results[-1:]).splitlines()[1], flush=True)
    print("\n" + table(results))
    for result in results:
        for path in result.findings:
            print(f"{result.name}: {path}, see {path.parent / 'log'}")
        if result.broken:
            print(f"{result.name}: see {arguments.folder / result.name / 'log'}")
    return int(any(result.findings or result.broken for result in results))


if __name__ == "__main__":
    sys.exit(main())
