"""How one batch is divided among backends that could execute parts of it side by side.

An execution takes a base time and some for each row, so k parts take less time than the whole batch
and k - 1 base times more work. Pure arithmetic: `Scheduler.divide` knows the backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from lb.balancing.tuning import TUNING

_NETWORK_S: Final = TUNING.network_s


class BatchTime:
    """How long an instance would take for some rows of a batch."""

    __slots__ = ("base_s", "row_s")

    def __init__(self, base_s: float, row_s: float) -> None:
        self.base_s = base_s
        """Seconds that it takes at least, until it is idle included."""
        self.row_s = row_s
        """Seconds that each row adds; above 0."""

    def takes_s(self, rows: int) -> float:
        """Seconds that it takes for some rows."""
        return self.base_s + self.row_s * rows


def divide(
    times: Sequence[BatchTime],
    rows: int,
    limit: int,
    most: int,
    whole_s: float,
    spare_s: float,
    preferred: Sequence[int] = (),
) -> tuple[int, ...]:
    """Divide a batch into as many parts as pay.

    A further part pays if the answer comes sooner by more than the part costs: the base time of one
    more execution, and a way over the network. A base time counts for as much as the same work
    would take the fastest.

    Args:
        times: of each instance that could execute a part.
        rows: of the batch.
        limit: rows of one part at most.
        most: parts at most.
        whole_s: seconds until the answer if it is not cut; inf: it must be.
        spare_s: if parts take longer, one of the instances stays idle: for shorter requests.
        preferred: the numbers of rows that the model executes best, if any.

    Returns:
        The rows of each part, the largest first. Empty: it stays whole, or cannot be divided among
        these.
    """
    best: tuple[int, ...] = ()
    best_s = whole_s
    ranked = sorted(times, key=lambda each: each.takes_s(1))
    for count in range(1 if whole_s == inf else 2, min(len(ranked), rows, most) + 1):
        if count * limit < rows:
            continue
        used = ranked[:count]
        parts = _in_proportion(used, rows, limit)
        if preferred:
            parts = _preferred(parts, limit, preferred)
        if not parts[-1]:
            break  # the slowest is too slow even for one row
        took_s = max(each.takes_s(part) for each, part in zip(used, parts, strict=True))
        if count == len(ranked) and took_s > spare_s:
            break
        last = used[-1]
        costs_s = last.base_s * ranked[0].row_s / last.row_s
        if best_s - took_s <= costs_s + _NETWORK_S:
            break
        best, best_s = tuple(parts), took_s
    return tuple(sorted(best, reverse=True))


def _in_proportion(times: Sequence[BatchTime], rows: int, limit: int) -> list[int]:
    """Rows for each instance, so that all end at about the same time."""
    parts = [0] * len(times)
    left = rows
    # Whoever is at its limit, or is slower than the others together, takes no part in the others'
    # division; each turn finds one at least.
    open_at = list(range(len(times)))
    while open_at:
        speed = base_rows = 0.0
        for at in open_at:
            speed += 1.0 / times[at].row_s
            base_rows += times[at].base_s / times[at].row_s
        end_s = (left + base_rows) / speed
        wanted = {at: (end_s - times[at].base_s) / times[at].row_s for at in open_at}
        full = [at for at in open_at if wanted[at] >= limit]
        slow = [at for at in open_at if wanted[at] <= 0]
        for at in full:
            parts[at] = limit
            left -= limit
        if not (full or slow):
            for at in open_at:
                parts[at] = int(wanted[at])
            break
        open_at = [at for at in open_at if at not in full and at not in slow]
    for _ in range(rows - sum(parts)):
        least = min(
            (at for at in range(len(times)) if parts[at] < limit),
            key=lambda at: times[at].takes_s(parts[at] + 1),
        )
        parts[least] += 1
    return parts


def _preferred(parts: Sequence[int], limit: int, preferred: Sequence[int]) -> list[int]:
    """Give all parts but the last a preferred number of rows, where one is near."""
    rows = sum(parts)
    sizes = [size for size in preferred if size <= limit]
    found = list(parts)
    left = rows
    for at, part in enumerate(parts[:-1]):
        later = len(parts) - at - 1
        fits = [size for size in sizes if later <= left - size <= later * limit]
        if fits:
            found[at] = min(fits, key=lambda size: abs(size - part))
        left -= found[at]
        if not later <= left <= later * limit:
            return list(parts)
    found[-1] = left
    return found
