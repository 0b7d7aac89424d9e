"""Record `triton-lb demo --once` in a terminal as an animated SVG: docs/pictures/demo.svg.

    python tools/record_demo.py [--output docs/pictures/demo.svg] [--columns 104] [--lines 36]

What is shown is what the command wrote, at the pace at which it wrote it. Takes as long as the
demo, half a minute, and needs a quiet machine, since the latencies are real.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from terminal import record, svg

COMMAND = (sys.executable, "-m", "lb", "demo", "--once")
SHOWN_COMMAND = "$ make demo ONCE=1"
TITLE = (
    "The demo of triton-lb: simulated Tritons are killed, frozen and drained, and no request fails"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures/demo.svg"))
    parser.add_argument("--columns", type=int, default=104)
    parser.add_argument("--lines", type=int, default=36)
    given = parser.parse_args()
    frames = list(record(COMMAND, given.columns, given.lines, prompt=SHOWN_COMMAND))
    given.output.write_text(svg(frames, given.columns, given.lines, TITLE))
    size = given.output.stat().st_size // 1024
    print(f"{given.output}: {len(frames)} frames, {frames[-1][0]:.0f} s, {size} KiB")


if __name__ == "__main__":
    main()
