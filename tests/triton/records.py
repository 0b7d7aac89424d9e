"""What the models noted about requests, by request id."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.fakes.process import wait_until
from tests.triton.target import WAIT_S


class Records:
    """The directory into which `slow_cancel` and `repeat_int32` write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._counter = itertools.count()

    def new_id(self) -> str:
        """An id that no request had before."""
        return f"request-{next(self._counter)}"

    def wait_for(self, request_id: str, what: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until the model noted `started`, `cancelled` or `finished`.

        Raises:
            TimeoutError: when it did not.
        """
        record = self.directory / request_id
        wait_until(
            lambda: record.exists() and record.read_text() == what,
            timeout_s=timeout_s,
            what=f"{request_id} is {what}",
        )
