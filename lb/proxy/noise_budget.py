"""How often a request may be copied to the model in service itself.

Such a copy executes on a backend that serves requests. The copy is not counted there, so a request
that is sent to the backend meanwhile may have to wait for its end. At 70 % load nearly every copy
delays a request: with one copy in ten requests, the 99th percentile would be that of the delayed
ones. So the requests that meet a copy are counted, and the count is kept low. Where backends are
mostly idle few requests meet a copy, and the budget hardly limits the copies.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 0.001
"""Of requests, the share that may meet a copy. It is a tenth of the 1 % that the 99th percentile
leaves out, so that percentile moves by as much as from 99 to 98.9 % at most."""
_SAVED: Final = 30.0
"""Requests that may meet a copy at once. About as many pairs tell whether a model repeats its
answers at all, so that a comparison that has just begun need not wait for them."""


class NoiseBudget:
    """A token bucket of requests that may be delayed. One copy is under way at a time, because it
    is known only at its end how many requests it met."""

    def __init__(self) -> None:
        self._left = _SAVED
        self._is_under_way = False

    @property
    def allows(self) -> bool:
        """Whether a copy may be sent now."""
        return self._left > 0 and not self._is_under_way

    def request(self) -> None:
        """A request was answered, which earns its share of a delay."""
        self._left = min(_SAVED, self._left + _SHARE)

    def begin(self) -> None:
        """A copy is sent."""
        self._is_under_way = True

    def end(self, met: int) -> None:
        """A copy is over.

        Args:
            met: requests that were sent to its backend meanwhile.
        """
        self._is_under_way = False
        self._left -= met
