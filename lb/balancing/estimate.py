"""An estimate: when one more request would execute on a model backend, and whether it may go."""

from __future__ import annotations

from math import inf
from typing import Final


class Estimate:
    """The prediction of a model backend for one request, at one moment. Never changed once made.

    Times are monotonic seconds.
    """

    __slots__ = ("begins_at", "cost_s", "ends_at", "may_begin")

    def __init__(self, begins_at: float, ends_at: float, cost_s: float, *, may_begin: bool) -> None:
        self.begins_at = begins_at
        """When its execution would begin."""
        self.ends_at = ends_at
        """When its execution would end."""
        self.cost_s = cost_s
        """Seconds of execution that it is charged with when model backends are compared."""
        self.may_begin = may_begin
        """The model backend has room for it now."""


NEVER: Final = Estimate(inf, inf, 0.0, may_begin=False)
"""The estimate of a request that cannot go anywhere."""
