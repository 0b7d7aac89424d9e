"""A long message that comes in many short pieces, kept in few."""

from __future__ import annotations

from typing import Final

MANY: Final = 64
"""From this number on pieces are joined."""
LONG: Final = 128 * 1024
"""Bytes of a piece that is long enough: to join those takes milliseconds, and saves nothing."""


def join_short(pieces: list[bytes | memoryview]) -> None:
    """Join the last pieces where there are many.

    Only as far back as pieces are no longer than twice what follows them, so that each byte is
    moved a few times: to join all of them each time would move a message of 200 MB fifty times.
    """
    if len(pieces) <= MANY:
        return
    at = len(pieces) - 1
    size = len(pieces[at])
    while at and size < LONG and len(pieces[at - 1]) <= min(2 * size, LONG - 1):
        at -= 1
        size += len(pieces[at])
    if at < len(pieces) - 1:
        pieces[at:] = [b"".join(pieces[at:])]
