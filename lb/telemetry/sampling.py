"""Draws which requests are sampled, one after the other, for hardly more than a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from math import log, log1p
from operator import or_
from random import Random
from typing import Final

Draw = Callable[[], int]
"""What the request at hand is in the sample for; to be asked once for each."""
TRACED: Final = 1
RECORDED: Final = 2
"""What it may be drawn for: to be traced, to be in the payload log."""
_NEVER: Final = -1
_LONGEST_GAP: Final = sys.maxsize
"""As far as `repeat` counts."""


def drawing(rng: Random, ratio: float, drawn: int) -> Draw:
    """Draw so many of all requests, 0 to 1; they get `drawn`, and the others 0."""
    if ratio in (0.0, 1.0):
        return repeat(drawn if ratio else 0).__next__
    return chain.from_iterable(_gaps(rng, ratio, drawn)).__next__


def _gaps(rng: Random, ratio: float, drawn: int) -> Iterator[Iterator[int]]:
    """Requests that are not drawn, and one that is, again and again: as many as if each were drawn
    by itself (the geometric distribution), for one random number."""
    while True:
        gap = min(log(1.0 - rng.random()) / log1p(-ratio), _LONGEST_GAP)
        yield chain(repeat(0, int(gap)), (drawn,))


def both(first: Draw | None, second: Draw | None) -> Draw | None:
    """Draw for two things at once; None: for neither."""
    if first is None or second is None:
        return first or second
    return map(or_, iter(first, _NEVER), iter(second, _NEVER)).__next__
