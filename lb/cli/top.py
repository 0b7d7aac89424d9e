"""`triton-lb top`: the live document of running processes at a terminal.

Plain escape sequences suffice for what is drawn (docs/decisions/0054-a-page-and-a-terminal.md).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from lb.admin.live_document import Live
from lb.admin.models import Backend
from lb.admin.operations import BACKENDS, LIVE
from lb.cli.admin_client import AdminError, AdminTarget
from lb.cli.tables import printable
from lb.domain.durations import short_duration

REFRESH_S: Final = 1.0
NARROWEST: Final = 80
_HEAD_LINES: Final = 3
"""Lines for the sentence that says what is wrong."""
_SHAPES: Final = {
    "up": ("●", 32), "starting": ("◌", 33), "suspected": ("◇", 33), "partial": ("◐", 33),
    "ejected": ("◆", 31), "unready": ("■", 31), "down": ("✕", 31), "draining": ("▽", 36),
    "disabled": ("-", 36), "standby": ("○", 36), "removing": ("▽", 36),
}  # fmt: skip
"""By state: its shape, and the colour's number (ECMA-48 SGR)."""
_WORKER_SHAPES: Final = {"serving": ("●", 0), "silent": ("◇", 33), "away": ("✕", 31)}
_VERDICTS: Final = {"good": ("●", 32), "degraded": ("▲", 33), "bad": ("✕", 31)}
_SORTS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "problems": lambda _: 0,  # as the document has them
    "name": lambda each: each["name"],
    "requests": lambda each: -(each["requests"] or 0),
    "in flight": lambda each: -each["in_flight"],
    "errors": lambda each: -(each["errors"] or 0),
    "mean time": lambda each: -(each["mean_ms"] or 0),
}
_KEYS: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down",
    "\r": "enter", "\n": "enter",
}  # fmt: skip
"""By what a terminal sends."""
_VIEWS: Final = {"m": "models", "w": "workers", "c": "changes"}
"""By key, beside the backends."""
_HELP: Final = {
    "backends": "↑↓ select  s sort  m models  w workers  c changes  d drain  e enable  q quit",
    "models": "↑↓ select  Enter look into the model  m backends  w workers  c changes  q quit",
    "model": "m models  w workers  c changes  q quit",
    "workers": "m models  w backends  c changes  q quit",
    "changes": "m models  w workers  c backends  q quit",
}
"""Keys by what is shown."""


@dataclass(slots=True)
class View:
    """What the user has chosen to see."""

    sort: str = "problems"
    shows: str = "backends"
    """`backends`, `models`, `model`, `workers` or `changes`."""
    model: str = ""
    """Its name, when one is looked into."""
    selected: int = 0
    """Which row of all."""
    said: str = ""
    """What came of the last key."""


@dataclass(slots=True)
class Reading:
    """What one process said last."""

    target: AdminTarget
    document: dict[str, Any] | None = None
    error: str = ""


@dataclass(slots=True)
class Drawing:
    """Lines for a terminal, and what can be selected."""

    lines: list[str] = field(default_factory=list)
    rows: list[tuple[AdminTarget, str]] = field(default_factory=list)
    """Process, and name of the backend or model, of each row."""


def top(targets: Sequence[AdminTarget], *, once: bool) -> int:
    """Show how processes do, until `q` is pressed.

    Args:
        targets: whose documents to show; with `as_json`, the documents are printed, one a line.
        once: print them once.

    Returns:
        The exit code: 0, or 1 where a process could not be asked.
    """
    readings = [Reading(target) for target in targets]
    with ThreadPoolExecutor(len(targets)) as pool:
        list(pool.map(_read, readings))
        if targets[0].as_json:
            return _print_json(readings)
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            width = shutil.get_terminal_size((NARROWEST, 0)).columns
            print(*draw(readings, View(), width, 0, coloured=False).lines, sep="\n")
            return int(any(each.error for each in readings))
        return _watch(readings, pool)


def _print_json(readings: Sequence[Reading]) -> int:
    for each in readings:
        if each.document is not None:
            print(json.dumps({"admin": each.target.address, **each.document}))
        else:
            print(f"triton-lb: {each.error}", file=sys.stderr)
    return int(any(each.error for each in readings))


def _read(reading: Reading) -> None:
    try:
        reading.document = reading.target.read(LIVE, Live).received
        reading.error = ""
    except AdminError as error:
        reading.error = str(error)


# Keys


def _watch(readings: Sequence[Reading], pool: ThreadPoolExecutor) -> int:
    view = View()
    coloured = not os.environ.get("NO_COLOR")  # https://no-color.org
    with _screen() as source:
        due = time.monotonic() + REFRESH_S
        while True:
            size = shutil.get_terminal_size()
            drawing = draw(readings, view, size.columns, size.lines, coloured=coloured)
            sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(drawing.lines) + "\x1b[J")
            sys.stdout.flush()
            key = _key(source, max(0.0, due - time.monotonic()))
            if key in ("q", "\x03"):
                return 0
            if key:
                _press(key, view, drawing)
            if time.monotonic() >= due:
                due = time.monotonic() + REFRESH_S
                list(pool.map(_read, readings))


@contextmanager
def _screen() -> Iterator[int]:
    """A screen of our own, keys one by one, and the terminal as it was afterwards."""
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    tty.setcbreak(source)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield source
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _key(source: int, wait_s: float) -> str:
    """The next key; empty where none comes in time."""
    if not select.select([source], [], [], wait_s)[0]:
        return ""
    text = os.read(source, 16).decode("utf-8", "replace")
    return _KEYS.get(text, text[:1])


def _press(key: str, view: View, drawing: Drawing) -> None:
    view.said = ""
    if key in ("up", "down"):
        view.selected += 1 if key == "down" else -1
        view.selected = max(0, min(view.selected, len(drawing.rows) - 1))
    elif key == "s":
        names = list(_SORTS)
        view.sort = names[(names.index(view.sort) + 1) % len(names)]
    elif key in _VIEWS:
        wanted = _VIEWS[key]
        view.shows, view.selected = "backends" if view.shows == wanted else wanted, 0
    elif key == "enter" and view.shows == "models" and drawing.rows:
        view.shows, view.model, view.selected = "model", drawing.rows[view.selected][1], 0
    elif key in ("d", "e") and view.shows == "backends" and drawing.rows:
        target, name = drawing.rows[view.selected]
        action, undo = ("drain", "e enables it") if key == "d" else ("enable", "d drains it")
        try:
            target.call("POST", f"{BACKENDS}/{quote(name, safe='')}/{action}", Backend)
            view.said = f"{printable(name)}: {action} done; {undo}"
        except AdminError as error:
            view.said = str(error)


# Drawing


def draw(
    readings: Sequence[Reading], view: View, width: int, height: int, *, coloured: bool = True
) -> Drawing:
    """Draw what was read.

    Args:
        readings: of each process.
        view: what to show.
        width: columns; 80 suffice.
        height: lines of a screen, on which the selected row is marked; 0: it is no screen.
        coloured: with colours.
    """
    drawing = Drawing()
    paint = _paint if coloured else _plain
    room = max(1, (height - 2) // len(readings)) if height else 0
    for reading in readings:
        marked = view.selected if height else -1
        lines = _process(reading, view, drawing, len(readings) > 1, width, paint, marked)
        drawing.lines += lines[:room] if room else lines
    if height:
        del drawing.lines[height - 2 :]
        sort = f"  (by {view.sort})" if view.shows == "backends" else ""
        drawing.lines += ["", _cut(view.said or _HELP[view.shows] + sort, width)]
    return drawing


Paint = Callable[[str, int], str]


def _paint(text: str, colour: int) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def _plain(text: str, _colour: int) -> str:
    return text


def _process(
    reading: Reading,
    view: View,
    drawing: Drawing,
    is_named: bool,
    width: int,
    paint: Paint,
    marked: int,
) -> list[str]:
    label = f"{reading.target.address}  " if is_named else ""
    document = reading.document
    if document is None:
        return [paint(_cut(f"{label}✕ {reading.error}", width), 31)]
    summary = document["summary"]
    shape, colour = _VERDICTS.get(summary["verdict"], ("?", 33))
    head = f"{label}{shape} {summary['verdict']}: {printable(summary['why'])}"
    heads = textwrap.wrap(
        head, max(width, 3), subsequent_indent="  ", max_lines=_HEAD_LINES, placeholder="…"
    )
    errors = sum(summary["errors"].values())
    figures = [
        f"{_number(summary['requests'])} requests/s", f"p50 {_ms(summary['p50_ms'])}",
        f"p99 {_ms(summary['p99_ms'])}", f"{_number(errors)} errors/s",
        f"{summary['queued']} queued",
    ]  # fmt: skip
    lines = [*(paint(each, colour) for each in heads), _cut("  ".join(figures), width)]
    if reading.error:
        lines.append(paint(_cut(f"✕ {reading.error}", width), 31))
    lines.append("")
    draw_rows = {
        "backends": _backends,
        "models": _models,
        "model": _model,
        "workers": _workers,
        "changes": _changes,
    }[view.shows]
    for name, text, number in draw_rows(document, view):
        line = _cut(text, width)
        if name and len(drawing.rows) == marked:
            line = _paint(line.ljust(width), 7)
        elif number:
            line = paint(line, number)
        if name:
            drawing.rows.append((reading.target, name))
        lines.append(line)
    return lines


Row = tuple[str, str, int]
"""What it is about, its text, its colour; empty for headings."""


def _backends(document: dict[str, Any], view: View) -> Iterator[Row]:
    rows = sorted(document["backends"], key=_SORTS[view.sort])
    wide = max([7, *(min(20, len(printable(each["name"]))) for each in rows)])
    yield (
        "",
        f"  {'STATE':10} {'BACKEND':{wide}} {'IN FL':>5} {'REQ/S':>7} {'SHARE':>5} "
        f"{'MEAN':>8} {'ERR/S':>6}  WHY",
        2,
    )
    for each in rows:
        shape, colour = _SHAPES.get(each["state"], ("?", 33))
        share = "-" if each["share"] is None else f"{100 * each['share']:.0f}%"
        yield (
            each["name"],
            f"{shape} {each['state']:10} {_cut(printable(each['name']), wide):{wide}} "
            f"{each['in_flight']:5} {_number(each['requests']):>7} {share:>5} "
            f"{_ms(each['mean_ms']):>8} {_number(each['errors']):>6}  {printable(each['why'])}",
            0 if each["state"] == "up" and not each["why"] else colour,
        )
    yield from _variants(document)


def _models(document: dict[str, Any], view: View) -> Iterator[Row]:
    wide = 20
    yield (
        "",
        f"{'MODEL':{wide}} {'READY':>5} {'REQ/S':>6} {'FAIL/S':>6} {'P50':>7} {'P99':>7}"
        f" {'QUEUED':>6} {'OLDEST':>7}  NOTES",
        2,
    )
    for each in document["models"]:
        yield (
            each["name"],
            f"{_cut(printable(each['name']), wide):{wide}} {each['ready_on']:5} "
            f"{_number(each['requests']):>6} {_number(each['failures']):>6} "
            f"{_ms(each['p50_ms']):>7} {_ms(each['p99_ms']):>7} {each['queued']:6} "
            f"{_ms(each['oldest_ms']) if each['queued'] else '-':>7}  {'; '.join(_notes(each))}",
            0 if each["ready_on"] else 33,
        )
    yield from _variants(document)
    yield from _placement(document)


def _notes(model: dict[str, Any]) -> Iterator[str]:
    """What else is known of a model, apart from its figures."""
    for why, rate in model["waits"].items():
        yield f"waits: {why} {_number(rate)}/s"
    if model["retries"]:
        yield f"retries: {_number(model['retries'])}/s"
    if model["hedges"]:
        yield f"of these hedges: {_number(model['hedges'])}/s"
    if model["not_on"]:
        yield "not on " + ", ".join(map(printable, model["not_on"]))


def _model(document: dict[str, Any], view: View) -> Iterator[Row]:
    """One model: its figures, its variants, and what is learnt of it on each backend."""
    for row in document["models"]:
        if row["name"] == view.model:
            break
    else:
        yield "", f"{printable(view.model)} is not among the busiest models now.", 33
        return
    yield "", f"MODEL {printable(row['name'])}", 2
    figures = (
        f"ready on {row['ready_on']} of {document['backends_total']} backends",
        f"{_number(row['requests'])} requests/s, {_number(row['failures'])} failures/s",
        f"p50 {_ms(row['p50_ms'])}, p99 {_ms(row['p99_ms'])}",
        f"{row['queued']} queued" + (f", oldest {_ms(row['oldest_ms'])}" if row["queued"] else ""),
        *_notes(row),
    )
    for figure in figures:
        yield "", f"  {figure}", 0
    yield from _variants(document, row["name"])
    learnt = [
        (each, cell)
        for each in document["backends"]
        for cell in each["main_models"]
        if cell["model"] == row["name"]
    ]
    if not learnt:
        return
    yield "", "", 0
    yield "", f"  {'STATE':10} {'BACKEND':20} {'IN FL':>5} {'LIMIT':>5} {'ALONE':>7} SLOWED", 2
    for each, cell in learnt:
        shape, colour = _SHAPES.get(each["state"], ("?", 33))
        yield (
            "",
            f"{shape} {each['state']:10} {_cut(printable(each['name']), 20):20} "
            f"{cell['in_flight']:5} {cell['limit'] or '-':>5} {_ms(cell['ms']):>7} "
            f"{cell['slowed']:5.1f}x",
            0 if each["state"] == "up" else colour,
        )


def _variants(document: dict[str, Any], name: str | None = None) -> Iterator[Row]:
    """The variants and shadows of names, where there are any; with a name, those of that alone."""
    own = (f"{name}/", f"{name} (shadow)")
    rows = [
        each
        for each in document.get("variants", ())
        if name is None or each["name"].startswith(own)
    ]
    if rows:
        yield "", "", 0
        yield "", f"{'VARIANT':28} {'SHARE':>6} {'ANSWERED':>9} {'ERRORS':>7} {'P99':>7}  NOTE", 2
    for each in rows:
        yield (
            "",
            f"{_cut(printable(each['name']), 28):28} {each['percent']:5.4g}% {each['answers']:9} "
            f"{each['errors']:7} {_ms(each['p99_ms']):>7}  {printable(each['note'])}",
            33 if each["note"] else 0,
        )


def _placement(document: dict[str, Any]) -> Iterator[Row]:
    """The models that are loaded on demand, where there are any, by backend."""
    rows = document.get("placement", ())
    if rows:
        yield "", "", 0
        yield "", f"{'BACKEND':20} {'LOADED':>8}  MODELS", 2
    for each in rows:
        models = ", ".join(map(printable, each["models"])) or "-"
        yield (
            "",
            f"{_cut(printable(each['backend']), 20):20} {each['room']:>8}  {models}"
            + (f"; {printable(each['note'])}" if each["note"] else ""),
            33 if each["note"] else 0,
        )


def _workers(document: dict[str, Any], _view: View) -> Iterator[Row]:
    yield (
        "",
        f"  {'WORKER':>6} {'STATE':8} {'FOR':>7} {'PID':>8} {'CLIENTS':>7} {'IN FL':>5} "
        f"{'REQ/S':>7} {'CPU':>5} {'RESTARTS':>8}",
        2,
    )
    rows = document.get("workers", ())
    if not rows:
        yield "", "One process serves: `workers` is 1.", 0
    for each in rows:
        shape, colour = _WORKER_SHAPES.get(each["state"], ("?", 33))
        cpu = "-" if each["cpu"] is None else f"{100 * each['cpu']:.0f}%"
        yield (
            "",
            f"{shape} {each['index']:6} {each['state']:8} {short_duration(each['since_s']):>7} "
            f"{each['pid'] or '-':>8} {each['connections']:7} {each['in_flight']:5} "
            f"{_number(each['requests']):>7} {cpu:>5} {each['restarts']:8}",
            colour,
        )


def _changes(document: dict[str, Any], _view: View) -> Iterator[Row]:
    yield "", f"{'AGO':>7}  {'BACKEND':16} {'CHANGE':22} WHY", 2
    for each in document["changes"]:
        shape, colour = _SHAPES.get(each["after"], ("●", 0))
        subject = f"{printable(each['subject'])} " if each["subject"] else ""
        yield (
            each["backend"],
            f"{short_duration(each['age_s']):>7}  {_cut(printable(each['backend']), 16):16} "
            f"{_cut(f'{shape} {subject}' + each['after'], 22):22} {printable(each['why'])}",
            colour,
        )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return short_duration(value / 1000)
