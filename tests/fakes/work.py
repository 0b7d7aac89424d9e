"""What a function does, counted: instructions of the interpreter, and bytes that are gone over."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, SupportsIndex


def instructions(function: Callable[[], object]) -> int:
    """Instructions of the interpreter until a function returns, those of its callees included.

    The garbage collector, which may be due at any moment, waits: others have it call them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _monitored(function) if sys.version_info >= (3, 12) else _traced(function)
    finally:
        if was_enabled:
            gc.enable()


def _monitored(function: Callable[[], object]) -> int:
    """Count with `sys.monitoring`: a trace function of 3.12 misses parts of first calls."""
    seen = 0
    own = _monitored.__code__
    monitoring = sys.monitoring

    def count(code: CodeType, _offset: int) -> None:
        nonlocal seen
        seen += code is not own

    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, "instructions")
    monitoring.register_callback(tool, event, count)
    monitoring.set_events(tool, event)
    try:
        function()
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)
    return seen


def _traced(function: Callable[[], object]) -> int:
    """Count with a trace function."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return seen


class CountedBytes(bytes):
    """Bytes that count how many of them their methods go over, copies included."""

    gone_over = 0
    """Of all that come from this piece; see `counted`."""

    @classmethod
    def note(cls, size: int) -> None:
        """So many bytes were gone over."""
        cls.gone_over += size

    def _same(self, data: bytes) -> CountedBytes:
        self.note(len(self))
        return type(self)(data)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, int):
            return found
        self.note(len(found))
        return type(self)(found)

    def __add__(self, other: Any) -> bytes:
        self.note(len(other))
        return self._same(super().__add__(other))

    def __radd__(self, other: bytes) -> bytes:
        self.note(len(other))
        return self._same(other + bytes(self))

    def __contains__(self, other: Any) -> bool:
        self.note(len(self))
        return super().__contains__(other)

    def replace(self, old: Any, new: Any, count: SupportsIndex = -1, /) -> bytes:
        """See `bytes`."""
        return self._same(super().replace(old, new, count))

    def translate(self, table: Any, /, delete: Any = b"") -> bytes:
        """See `bytes`."""
        return self._same(super().translate(table, delete))

    def strip(self, characters: Any = None, /) -> bytes:
        """See `bytes`."""
        return self._same(super().strip(characters))

    def lstrip(self, characters: Any = None, /) -> bytes:
        """See `bytes`."""
        return self._same(super().lstrip(characters))

    def rstrip(self, characters: Any = None, /) -> bytes:
        """See `bytes`."""
        return self._same(super().rstrip(characters))

    def split(self, mark: Any = None, most: SupportsIndex = -1) -> list[bytes]:
        """See `bytes`."""
        self.note(len(self))
        return [type(self)(part) for part in super().split(mark, most)]

    def count(self, *what: Any) -> int:
        """See `bytes`."""
        self.note(len(self))
        return super().count(*what)

    def rfind(self, *what: Any) -> int:
        """See `bytes`."""
        self.note(len(self))
        return super().rfind(*what)


def counted(data: bytes) -> CountedBytes:
    """A piece whose class, made for it alone, has the count."""
    return type("Counted", (CountedBytes,), {})(data)  # type: ignore[no-any-return]
