"""Nothing that a handler of ours catches and logs goes unnoticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Failures(logging.Handler):
    """Keeps what was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def no_failure_is_logged() -> Iterator[None]:
    """Raises the error that was logged inside, or AssertionError with its text."""
    failures = _Failures()
    logger = logging.getLogger("lb")
    logger.addHandler(failures)
    try:
        yield
    finally:
        logger.removeHandler(failures)
    for record in failures.records:
        if record.exc_info and record.exc_info[1]:
            raise record.exc_info[1]
        raise AssertionError(record.getMessage())
