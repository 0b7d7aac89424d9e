"""Play one flood in a process of its own.

`python -m tests.floods.attack CASE START TARGET SIZE OUT`: TARGET and SIZE are JSON lists, START a
monotonic time. What was seen is in OUT. The process gives way to the others: what is measured
beside it is the balancer, not the scheduler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from tests.floods.catalogue import CASES, case_name
from tests.floods.line import Target
from tests.floods.play import Size


def main(name: str, start: str, target: str, size: str, out: str) -> None:
    """Wait for the start, play, and tell."""
    os.nice(10)
    (play,) = (flood.play for flood, is_tls in CASES if case_name(flood, is_tls) == name)
    time.sleep(max(0.0, float(start) - time.monotonic()))
    played = asyncio.run(play(Target(*json.loads(target)), Size(*json.loads(size))))
    Path(out).write_text(json.dumps(dataclasses.asdict(played)))


if __name__ == "__main__":
    main(*sys.argv[1:])
