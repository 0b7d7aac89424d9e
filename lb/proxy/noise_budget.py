"""How often a request may be copied to the model in service itself.

Such a copy executes on a backend that serves requests. The copy is not counted there, so a request
that is sent to the backend meanwhile may have to wait for its end. At 70 % load nearly every copy
delays a request: with one copy in ten requests, the 99th percentile would be that of the delayed
ones. So the requests that wait behind a copy are counted, and the count is kept low. Where backends
are mostly idle few requests do, and the budget hardly limits the copies.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 0.001
"""The share of requests that may wait behind a copy. It is a tenth of the 1 % beyond the 99th
percentile, which then becomes the 98.9th of the same latencies at most."""
_SAVED: Final = 50.0
"""Delays that may be saved up while backends are idle, or no answers are compared."""
_FIRST: Final = 1.0
"""Delays that are there at the beginning. With more of them the requests of the first minutes would
have another 99th percentile."""


class NoiseBudget:
    """A token bucket of requests that may be delayed. One copy is under way at a time, because it
    is known only at its end how many requests it has delayed."""

    def __init__(self) -> None:
        self._left = _FIRST
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

    def end(self, delayed: int) -> None:
        """A copy is over.

        Args:
            delayed: requests that came to its backend meanwhile, and are not answered yet.
        """
        self._is_under_way = False
        self._left -= delayed
