"""Record `triton-lb demo --once` in a terminal as an animated SVG: docs/pictures/demo.svg.

    python tools/record_demo.py [--output docs/pictures/demo.svg] [--columns 104] [--lines 36]

What is shown is what the command wrote, at the pace at which it wrote it. Takes as long as the
demo, half a minute, and needs a quiet machine, since the latencies are real.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

COMMAND = (sys.executable, "-m", "lb", "demo", "--once")
SHOWN_COMMAND = "$ make demo ONCE=1"
BETWEEN_S = 0.2
"""Changes that come faster than this are one frame."""
LAST_S = 6.0
"""How long the last frame stays before the recording begins again."""
CELL_WIDTH, CELL_HEIGHT = 8.4, 18
"""Pixels of a character at a font size of 14."""
MARGIN = 14
BACKGROUND, FOREGROUND = "#16181d", "#d8dee9"
COLOURS = {
    "red": "#ff6b6b", "green": "#7bd88f", "brown": "#fce566", "yellow": "#fce566",
    "blue": "#5ad4e6", "magenta": "#b9a1ff", "cyan": "#5ad4e6",
}  # fmt: skip

Row = tuple[tuple[str, str, bool], ...]
"""Pieces of a line: text, colour, whether bold."""
Frame = tuple[float, tuple[Row, ...]]
"""Seconds since the start, and all lines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures/demo.svg"))
    parser.add_argument("--columns", type=int, default=104)
    parser.add_argument("--lines", type=int, default=36)
    given = parser.parse_args()
    frames = list(record(given.columns, given.lines))
    given.output.write_text(svg(frames, given.columns, given.lines))
    size = given.output.stat().st_size // 1024
    print(f"{given.output}: {len(frames)} frames, {frames[-1][0]:.0f} s, {size} KiB")


def record(columns: int, lines: int) -> Iterator[Frame]:
    """Run the command in a terminal of this size, and yield what it shows whenever that changes.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (lines, columns))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    screen = pyte.Screen(columns, lines)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    stream.feed(SHOWN_COMMAND.encode() + b"\n")
    began = time.monotonic()
    shown: tuple[Row, ...] = ()
    while True:
        until = time.monotonic() + BETWEEN_S
        is_open = True
        while is_open and (left := until - time.monotonic()) > 0:
            if select.select([ours], [], [], left)[0]:
                try:
                    stream.feed(os.read(ours, 65536))
                except OSError:  # the command has ended
                    is_open = False
        rows = tuple(_row(screen, number) for number in range(lines))
        if rows != shown:
            shown = rows
            yield time.monotonic() - began, rows
        if not is_open:
            break
    os.close(ours)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, COMMAND)


def _row(screen: pyte.Screen, number: int) -> Row:
    cells = [screen.buffer[number][column] for column in range(screen.columns)]
    styled = groupby(cells, key=lambda cell: (cell.fg, cell.bold))
    pieces = [("".join(cell.data for cell in run), *style) for style, run in styled]
    if pieces:
        text, *style = pieces[-1]
        pieces[-1] = (text.rstrip(), *style)
    return tuple(pieces)


def svg(frames: list[Frame], columns: int, lines: int) -> str:
    """The frames side by side, and a style that shows one after the other.

    Lines that look alike are written once, since most of a frame is as in the one before.
    """
    width, height = columns * CELL_WIDTH + 2 * MARGIN, lines * CELL_HEIGHT + 2 * MARGIN
    lasts_s = frames[-1][0] + LAST_S
    known: dict[Row, str] = {}
    steps, strip = [], []
    for place, (at, rows) in enumerate(frames):
        # The first frame is there from the beginning.
        percent = 100 * at / lasts_s if place else 0.0
        steps.append(f"{percent:.3f}%{{transform:translateX({-place * width:.0f}px)}}")
        for number, row in enumerate(rows):
            if any(text.strip() for text, *_ in row):
                name = known.setdefault(row, f"r{len(known)}")
                x, y = place * width + MARGIN, MARGIN + (number + 1) * CELL_HEIGHT - 5
                strip.append(f'<use href="#{name}" x="{x:.0f}" y="{y:.0f}"/>')
    defined = [f'<text id="{name}">{_spans(row)}</text>' for row, name in known.items()]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
            f'width="{width:.0f}" height="{height}">',
            "<title>The demo of triton-lb: simulated Tritons are killed, frozen and drained, "
            "and no request fails</title>",
            "<style>",
            f"text{{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
            f"fill:{FOREGROUND};white-space:pre}}",
            f".strip{{animation:play {lasts_s:.2f}s steps(1,end) infinite}}",
            f"@keyframes play{{{''.join(steps)}}}",
            "</style>",
            f"<defs>{''.join(defined)}</defs>",
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
            f'<g class="strip">{"".join(strip)}</g>',
            "</svg>\n",
        )
    )


def _spans(row: Row) -> str:
    """The pieces of a line, each at its column: fonts differ in width."""
    spans, column = [], 0
    for text, colour, is_bold in row:
        style = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ""
        weight = ' font-weight="bold"' if is_bold else ""
        length = f' textLength="{len(text) * CELL_WIDTH:.1f}"' if text.strip() else ""
        if text.strip():
            x = f"{column * CELL_WIDTH:.1f}"
            spans.append(
                f'<tspan x="{x}"{length} xml:space="preserve"{style}{weight}>{escape(text)}</tspan>'
            )
        column += len(text)
    return "".join(spans)


if __name__ == "__main__":
    main()
