"""Give a process, and all that it has started, the usual priority again.

    python tools/usual_priority.py PID

What runs at idle priority gets nothing as long as others want all processors. That is meant while
there are tests that look at a clock, and must not go on for as long as somebody else computes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path


def started_by(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return  # it has ended
    for child in children:
        yield from started_by(int(child))


def main() -> None:
    """Whoever starts others comes before them, so those that are started meanwhile inherit it."""
    for pid in started_by(int(sys.argv[1])):
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                os.sched_setscheduler(int(task), os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, pid, 0)
        except OSError:
            pass  # it has ended, or that is not allowed


if __name__ == "__main__":
    main()
