"""Counts what the interpreter does: calls, instructions and objects, the same on every machine.

CPython calls a trace function before every instruction. What has been allocated since the one
before is an object made there, even if the next instruction frees it. Not seen are objects that
come from one of CPython's free lists (small tuples, floats), and those freed by the instruction
that made them. The function goes in through the C interface: `sys.settrace` makes a dictionary of
the variables at each event, which would count too.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from array import array
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from types import CodeType, FrameType
from typing import Any, Final

_CALL, _RETURN, _C_CALL, _INSTRUCTION = 0, 3, 4, 7
"""Kinds of events (cpython/pystate.h)."""
_Tracer = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p
)
_NO_TRACER: Final = _Tracer()
"""A null pointer."""
_set_trace = ctypes.pythonapi.PyEval_SetTrace
_set_profile = ctypes.pythonapi.PyEval_SetProfile
for _set in (_set_trace, _set_profile):
    _set.argtypes = (_Tracer, ctypes.py_object)
    _set.restype = None


@dataclass
class Work:
    """What a piece of a program did."""

    calls: float = 0
    """Of functions written in Python."""
    c_calls: float = 0
    """Of functions and methods written in C; operators are none."""
    instructions: float = 0
    """Of the interpreter."""
    objects: float = 0
    """Blocks of memory taken, the frames of calls left out."""
    kept: float = 0
    """Blocks of memory taken and not given back."""

    def per(self, parts: int) -> Work:
        """The share of one of so many parts."""
        return Work(**{name: value / parts for name, value in asdict(self).items()})


class Counter:
    """Counts what steps do, and within them what certain functions do, their callees included."""

    def __init__(self, functions: Collection[CodeType] = ()) -> None:
        self.total = Work()
        self.within = {code: Work() for code in functions}
        """By function; `calls` are those of itself, `c_calls` and `kept` are not counted."""
        self._trace = _Tracer(self._on_event)
        self._profile = _Tracer(self._on_profile)
        self._open: list[FrameType] = []
        """Calls of those functions that are under way."""
        self._before: list[float] = []
        """What had been counted before each: instructions, objects. No tuples, which would come
        from a free list that the program uses too."""
        # Not an attribute of its own, whose number would be one more block.
        self._blocks = array("q", (0,))

    def count(self, step: Callable[[Any], object], inputs: Iterable[Any]) -> None:
        """Add what one step does. It is taken for each of three inputs, and should do the same
        each time, since each time something else is looked at."""
        first, second, third = inputs
        had_collector = gc.isenabled()
        gc.disable()
        try:
            self._blocks[0] = sys.getallocatedblocks()
            _set_trace(self._trace, None)
            step(first)
            _set_trace(_NO_TRACER, None)
            _set_profile(self._profile, None)
            step(second)
            _set_profile(_NO_TRACER, None)
            self._blocks[0] = sys.getallocatedblocks()
            step(third)
            self.total.kept += sys.getallocatedblocks() - self._blocks[0]
        finally:
            if had_collector:
                gc.enable()

    def _on_event(self, _: object, frame: FrameType, kind: int, _argument: object) -> int:
        total = self.total
        made = sys.getallocatedblocks() - self._blocks[0]
        if made > 0:
            total.objects += made
        del made  # it is a block itself
        if kind == _INSTRUCTION:
            total.instructions += 1
        elif kind == _CALL:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            total.objects -= 1
            total.calls += 1
            if frame.f_code in self.within:
                self._open.append(frame)
                self._before.append(total.instructions)
                self._before.append(total.objects)
        elif kind == _RETURN and self._open and self._open[-1] is frame:
            self._open.pop()
            work = self.within[frame.f_code]
            work.calls += 1
            work.objects += total.objects - self._before.pop()
            work.instructions += total.instructions - self._before.pop()
            del work
        self._blocks[0] = sys.getallocatedblocks()
        return 0

    def _on_profile(self, _: object, _frame: FrameType, kind: int, _argument: object) -> int:
        if kind == _C_CALL:
            self.total.c_calls += 1
        return 0
