"""Lines, texts and polylines of diagrams as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

INK: Final = "#333333"
GRID: Final = "#dddddd"
COLOURS: Final = ("#1f77b4", "#2ca02c", "#ff7f0e")


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashes: str = "") -> str:
    """A straight line."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {where} stroke="{colour}"{dashed}/>'


def polyline(points: Iterable[tuple[float, float]], colour: str, *, width: float) -> str:
    """Points, joined."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{path}"/>'


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = INK,
) -> str:
    """A text whose baseline begins, ends or is centred there."""
    style = f'fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{content}</text>'


def document(width: int, height: int, parts: Sequence[str]) -> str:
    """The whole picture, on white."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        )
    )
