"""What a command shows in a terminal, as an SVG: a picture, or a recording that plays."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

import pyte

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

Row = tuple[tuple[str, str, bool, bool], ...]
"""Pieces of a line: text, colour, whether bold, whether colours are exchanged."""
Frame = tuple[float, tuple[Row, ...]]
"""Seconds since the start, and all lines."""


def record(
    command: Sequence[str], columns: int, lines: int, *, prompt: str = "", seconds: float = 0.0
) -> Iterator[Frame]:
    """Run the command in a terminal of this size, and yield what it shows whenever that changes.

    Args:
        command: to be run.
        columns: of the terminal.
        lines: of the terminal.
        prompt: a line that is shown before what the command writes.
        seconds: after which it is ended; 0 lets it end by itself.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (lines, columns))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    screen = pyte.Screen(columns, lines)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    if prompt:
        stream.feed(prompt.encode() + b"\n")
    began = time.monotonic()
    shown: tuple[Row, ...] = ()
    is_open = True
    while is_open:
        until = time.monotonic() + BETWEEN_S
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
        if seconds and time.monotonic() - began >= seconds:
            process.terminate()
            is_open = False
    os.close(ours)
    code = process.wait()
    if code and not seconds:
        raise subprocess.CalledProcessError(code, command)


def _row(screen: pyte.Screen, number: int) -> Row:
    cells = [screen.buffer[number][column] for column in range(screen.columns)]
    styled = groupby(cells, key=lambda cell: (cell.fg, cell.bold, cell.reverse))
    pieces = [("".join(cell.data for cell in run), *style) for style, run in styled]
    if pieces:
        text, *style = pieces[-1]
        _, _, is_reversed = style
        pieces[-1] = (text if is_reversed else text.rstrip(), *style)
    return tuple(pieces)


def svg(frames: Sequence[Frame], columns: int, lines: int, title: str) -> str:
    """The frames side by side, and a style that shows one after the other.

    A single frame is a picture. Lines that look alike are written once, since most of a frame is as
    in the one before.
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
    defined = [
        f'<g id="{name}">{_bars(row)}<text>{_spans(row)}</text></g>' for row, name in known.items()
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
            f'width="{width:.0f}" height="{height}">',
            f"<title>{escape(title)}</title>",
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


def _bars(row: Row) -> str:
    """What is behind the pieces whose colours are exchanged."""
    bars, column = [], 0
    for text, colour, _, is_reversed in row:
        if is_reversed:
            x, width = column * CELL_WIDTH, len(text) * CELL_WIDTH
            fill = COLOURS.get(colour, FOREGROUND)
            size = f'width="{width:.1f}" height="{CELL_HEIGHT}"'
            bars.append(f'<rect x="{x:.1f}" y="{5 - CELL_HEIGHT}" {size} fill="{fill}"/>')
        column += len(text)
    return "".join(bars)


def _spans(row: Row) -> str:
    """The pieces of a line, each at its column: fonts differ in width."""
    spans, column = [], 0
    for text, colour, is_bold, is_reversed in row:
        ink = BACKGROUND if is_reversed else COLOURS.get(colour, "")
        style = f' fill="{ink}"' if ink else ""
        weight = ' font-weight="bold"' if is_bold else ""
        length = f' textLength="{len(text) * CELL_WIDTH:.1f}"' if text.strip() else ""
        if text.strip():
            x = f"{column * CELL_WIDTH:.1f}"
            spans.append(
                f'<tspan x="{x}"{length} xml:space="preserve"{style}{weight}>{escape(text)}</tspan>'
            )
        column += len(text)
    return "".join(spans)
