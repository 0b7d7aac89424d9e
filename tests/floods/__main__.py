"""Play every flood at full size and print the table: `python -m tests.floods [NAME ...]`.

A name is a part of a case's name. `--out FILE` keeps the table as Markdown. Exit code 1 when a
bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.floods.catalogue import CASES, Flood, case_name
from tests.floods.judge import Verdict, cancelled_late_s, lag_within
from tests.floods.play import Size
from tests.floods.slow_floods import warm_up
from tests.floods.stage import Stage
from tests.floods.table import HEADER, row

QUIET_S = 5.0
TIMEOUT_S = 2.0
_AGAIN = 2
"""Times that a flood is played again where only the good client's p99 was too long: other work on
the machine does that too."""
_START_S = 1.5
_WATCH_S = 0.02
_AFTERWARDS_S = 10.0


def run(flood: Flood, is_tls: bool, size: Size) -> Verdict:
    """One flood on a fresh balancer."""
    with tempfile.TemporaryDirectory(prefix="floods-") as folder:
        stage = Stage(Path(folder), TIMEOUT_S)
        try:
            return _play(stage, flood, is_tls, size)
        finally:
            stage.close()


def _play(stage: Stage, flood: Flood, is_tls: bool, size: Size) -> Verdict:
    name = case_name(flood, is_tls)
    asyncio.run(warm_up(stage.target(tls=is_tls)))
    stop_good = stage.start_good(tls=is_tls)
    began = time.monotonic() + _START_S
    at = began + QUIET_S
    attack, read = stage.start_attack(name, at, size, tls=is_tls)
    while time.monotonic() < at - 0.1:
        time.sleep(_WATCH_S)
    stage.observer.clear()
    before, lines, cpu_s = stage.rss(), stage.log_lines(), stage.cpu_s()
    counted, lag = stage.metrics(), stage.lag()
    peak = before
    while attack.is_running:
        peak = max(peak, stage.rss())
        time.sleep(_WATCH_S)
    played = read()
    cpu_s = stage.cpu_s() - cpu_s
    late = stage.lag()
    samples = stop_good()
    left = stage.until_quiet(_AFTERWARDS_S)
    seen = stage.observer.look()
    after = stage.log_lines()
    counts = stage.metrics()
    return Verdict(
        name=name,
        flood=flood,
        played=played,
        timeout_s=TIMEOUT_S,
        quiet=[sample for sample in samples if began <= sample.due < at - 0.2],
        beside=[sample for sample in samples if at <= sample.due < played.ended],
        rss_growth=peak - before,
        cpu_share=cpu_s / max(0.1, played.ended - played.started),
        started_upstream=seen.flood,
        peak_upstream=seen.peak,
        late_s=cancelled_late_s(played, seen.handled),
        left=left,
        log_lines=(after[0] - lines[0], after[1] - lines[1]),
        tracebacks=stage.log.count("Traceback"),
        lag_s=(lag_within(lag, late, 0.99), lag_within(lag, late, 1.0)),
        finished_requests=int(counts["requests_total"] - counted["requests_total"]),
        state_changes=counts["backend_state_changes_total"]
        - counted["backend_state_changes_total"],
    )


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [
        (flood, is_tls)
        for flood, is_tls in CASES
        if not arguments.names or any(part in case_name(flood, is_tls) for part in arguments.names)
    ]
    lines = list(HEADER)
    print(*lines, sep="\n", flush=True)  # noqa: T201  # this is what it is for
    broken = 0
    for flood, is_tls in cases:
        verdict = run(flood, is_tls, Size())
        for _ in range(_AGAIN):
            if not verdict.is_only_slower:
                break
            verdict = run(flood, is_tls, Size())
        broken += bool(verdict.faults())
        lines.append(row(verdict))
        print(lines[-1], flush=True)  # noqa: T201
    print(f"\n{len(cases)} floods, {broken} with a broken bound")  # noqa: T201
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    return 1 if broken or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
