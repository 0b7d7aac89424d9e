"""Compressed messages and bodies that are needed whole, inflated in steps.

A few kilobytes may become many megabytes, whoever sends them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from lb.kserve.merge.steps import Steps
from lb.wire.grpc.compression import Inflater
from lb.wire.rope import Rope

_STEP_BYTES: Final = 128 * 1024
"""Bytes that one step inflates."""


class GaveWay(Exception):
    """There is too little memory for what is inflated, so its owner has ended."""


def inflated_in_steps(data: Rope, limit: int, hold: Callable[[int], bool]) -> Steps[Rope | None]:
    """Inflate a message or a body.

    Args:
        data: all of it.
        limit: bytes that it may inflate to.
        hold: counts bytes that are held from now on; False if their owner had to give way.

    Returns:
        None where it is broken, longer, cut off, or followed by something.

    Raises:
        GaveWay: see `hold`.
    """
    inflater = Inflater(data)
    slices: list[bytes] = []
    left = limit
    while not inflater.is_whole:
        try:
            # A byte beyond the limit tells that it is longer.
            piece = inflater.next(min(_STEP_BYTES, left + 1))
        except zlib.error:
            return None
        left -= len(piece)
        if left < 0:
            return None
        if not hold(len(piece)):
            raise GaveWay
        slices.append(piece)
        if not inflater.is_read:
            yield
    return Rope(slices)
