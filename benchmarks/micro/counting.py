"""Counts what the interpreter does: calls, instructions and objects, the same on every machine.

CPython calls a trace function before every instruction. What has been allocated since the one
before is an object made there, even if the next instruction frees it. Not seen are objects that
come from one of CPython's free lists (small tuples, floats), and those freed by the instruction
that made them. The function goes in through the C interface: `sys.settrace` makes a dictionary of
the variables at each event, which would count too. From CPython 3.12 on, trace functions miss
instructions, and `sys.monitoring` takes their place.
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


_SMALL: Final = 256
"""CPython keeps integers up to this one: they take no block."""


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
        self._open: list[object] = []
        """Calls of those functions that are under way: frames, or code where it is monitored."""
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
            if sys.version_info >= (3, 12):
                events = self._monitor()
                sys.monitoring.set_events(sys.monitoring.PROFILER_ID, events)
                step(first)
                sys.monitoring.set_events(sys.monitoring.PROFILER_ID, 0)
                sys.monitoring.free_tool_id(sys.monitoring.PROFILER_ID)
            else:
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

    def _monitor(self) -> int:
        """Register what is called for events; returns their set."""
        monitoring, events = sys.monitoring, sys.monitoring.events
        monitoring.use_tool_id(monitoring.PROFILER_ID, "counter")
        callbacks = {
            events.INSTRUCTION: self._on_instruction,
            events.PY_START: self._on_begin,
            events.PY_RESUME: self._on_begin,
            events.PY_RETURN: self._on_end,
            events.PY_YIELD: self._on_end,
            events.PY_UNWIND: self._on_end,
        }
        for event, callback in callbacks.items():
            monitoring.register_callback(monitoring.PROFILER_ID, event, callback)
        return sum(callbacks)

    def _on_event(self, _: object, frame: FrameType, kind: int, _argument: object) -> int:
        total = self.total
        blocks = sys.getallocatedblocks()
        made = blocks - self._blocks[0]
        if made > 0:
            total.objects += made
        elif kind == _INSTRUCTION and total.instructions > _SMALL:
            # This event leaves as many blocks as it found, so they need not be counted once more:
            # that goes through all memory, and is most of what counting costs.
            total.instructions += 1
            self._blocks[0] = blocks
            return 0
        del blocks, made  # they are blocks themselves
        if kind == _INSTRUCTION:
            total.instructions += 1
        elif kind == _CALL:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            total.objects -= 1
            self._begin(frame.f_code, frame)
        elif kind == _RETURN:
            self._end(frame.f_code, frame)
        self._blocks[0] = sys.getallocatedblocks()
        return 0

    def _on_instruction(self, code: CodeType, offset: int) -> None:
        """Count an instruction, and what the one before has allocated."""
        self._note_blocks(offset)
        self.total.instructions += code is not Counter.count.__code__
        self._blocks[0] = sys.getallocatedblocks() - (offset > _SMALL)

    def _on_begin(self, code: CodeType, offset: int) -> None:
        """Count a call, or that a generator goes on."""
        self._note_blocks(offset)
        self._begin(code, code)
        self._blocks[0] = sys.getallocatedblocks() - (offset > _SMALL)

    def _on_end(self, code: CodeType, offset: int, _result: object) -> None:
        """End a call, or a part of a generator."""
        self._note_blocks(offset)
        self._end(code, code)
        self._blocks[0] = sys.getallocatedblocks() - (offset > _SMALL)

    def _note_blocks(self, offset: int) -> None:
        """Count what has been allocated, but for the offset that the event brings."""
        made = sys.getallocatedblocks() - self._blocks[0] - (offset > _SMALL)
        if made > 0:
            self.total.objects += made

    def _begin(self, code: CodeType, call: object) -> None:
        total = self.total
        total.calls += 1
        if code in self.within:
            self._open.append(call)
            self._before.append(total.instructions)
            self._before.append(total.objects)

    def _end(self, code: CodeType, call: object) -> None:
        if self._open and self._open[-1] is call:
            self._open.pop()
            total, work = self.total, self.within[code]
            work.calls += 1
            work.objects += total.objects - self._before.pop()
            work.instructions += total.instructions - self._before.pop()

    def _on_profile(self, _: object, _frame: FrameType, kind: int, _argument: object) -> int:
        if kind == _C_CALL:
            self.total.c_calls += 1
        return 0
