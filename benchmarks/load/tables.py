"""Tables as text: aligned for a terminal, piped for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> str:
    """Columns side by side; a first cell that repeats the one above it is left blank.

    Columns of figures go to the right, those of words to the left.
    """
    columns = range(len(rows[0]))
    widths = [max(len(row[column]) for row in rows) for column in columns]
    are_figures = [_has_figures([row[column] for row in rows[1:]]) for column in columns]
    lines = []
    previous = ""
    for row in rows:
        first = row[0] if row[0] != previous else ""
        previous = row[0]
        cells = [
            text.rjust(width) if is_figure else text.ljust(width)
            for text, width, is_figure in zip([first, *row[1:]], widths, are_figures, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def _has_figures(column: Sequence[str]) -> bool:
    return any(text[:1].isdigit() for text in column) and not any(" " in text for text in column)


def piped(rows: Rows) -> str:
    """A table of Markdown, figures to the right."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|---|{'---:|' * (len(rows[0]) - 1)}")
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits or all before the point."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def quotient(value: float | None) -> str:
    """Two digits after the point, or nothing."""
    return "" if value is None else f"{value:.2f}"
