"""Stands for a line writer and keeps the lines."""

from __future__ import annotations


class KeptLines:
    """Lines in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)
