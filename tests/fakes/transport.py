"""A transport that remembers what was done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class FakeTransport(asyncio.Transport):
    """Collects what is written; its buffer is what the test says it is."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.writes: list[int] = []
        """Sizes of what was written at once."""
        self.buffered = 0
        self.reading = True
        self.eof = False
        self.closed = False
        self.aborted = False
        self.eof_error: OSError | None = None
        """What `write_eof` raises."""
        self._protocol: asyncio.BaseProtocol | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No limits."""

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Any) -> None:
        assert not self.eof
        self.written += bytes(data)
        self.writes.append(len(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.eof_error is not None:
            raise self.eof_error
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def take(self) -> bytes:
        """What was written since the last time."""
        written, self.written = self.written, b""
        return written
