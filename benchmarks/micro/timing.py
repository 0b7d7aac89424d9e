"""Times the marked functions where they work: within a scene, each behind a stopwatch.

One function at a time is replaced by one that takes the time around it, before the parts of the
scene are made, since they keep what they call. What the stopwatch itself costs is taken off.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from statistics import median
from types import FunctionType
from typing import Any, cast

from benchmarks.micro.functions import HotFunction
from benchmarks.micro.scenes import Make

_WARM_UP = 500
_now = time.perf_counter_ns


class Stopwatch:
    """Takes the time of a function's calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.times_ns: list[int] = []

        def timed(*args: Any, **named: Any) -> Any:
            began = _now()
            try:
                return function(*args, **named)
            finally:
                self.times_ns.append(_now() - began)

        self.timed = cast(FunctionType, update_wrapper(timed, function))

    @property
    def median_ns(self) -> float:
        """Per call. A mean would count what other programs did when they interrupted one."""
        return median(self.times_ns)


class Memory:
    """Takes what a function's calls hold at their peak, more than before them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.peak_bytes = 0
        self.calls = 0

        def watched(*args: Any, **named: Any) -> Any:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                return function(*args, **named)
            finally:
                self.peak_bytes += tracemalloc.get_traced_memory()[1] - before
                self.calls += 1

        self.watched = cast(FunctionType, update_wrapper(watched, function))

    @property
    def mean_bytes(self) -> float:
        """Per call."""
        return self.peak_bytes / max(self.calls, 1)


def time_scene(make: Make, steps: int) -> float:
    """Nanoseconds per part. Needs a running loop, as everything here."""
    scene = make(time.monotonic)
    _warm_up(scene.step, scene.take(_WARM_UP))
    inputs = scene.take(steps)
    with _quiet():
        began = time.thread_time_ns()
        for one in inputs:
            scene.step(one)
        return (time.thread_time_ns() - began) / (steps * scene.parts)


def time_within(function: HotFunction, make: Make, steps: int) -> float:
    """Nanoseconds per call of a function, those that it calls included, in a scene."""
    watch = Stopwatch(function.function)
    with _replaced(function, watch.timed):
        scene = make(time.monotonic)
        _warm_up(scene.step, scene.take(_WARM_UP))
        inputs = scene.take(steps)
        watch.times_ns.clear()
        with _quiet():
            for one in inputs:
                scene.step(one)
    return watch.median_ns


def bytes_within(function: HotFunction, make: Make, steps: int) -> float:
    """Bytes that a call of a function holds at its peak, more than before it."""
    memory = Memory(function.function)
    with _replaced(function, memory.watched):
        scene = make(time.monotonic)
        _warm_up(scene.step, scene.take(_WARM_UP))
        inputs = scene.take(steps)
        tracemalloc.start()
        try:
            for one in inputs:  # once for the buffers of tracemalloc, once to count
                scene.step(one)
            memory.peak_bytes = memory.calls = 0
            for one in scene.take(steps):
                scene.step(one)
        finally:
            tracemalloc.stop()
    return memory.mean_bytes


def stopwatch_ns(steps: int) -> float:
    """What a stopwatch shows around nothing."""
    watch = Stopwatch(lambda _: None)
    with _quiet():
        for one in range(steps):
            watch.timed(one)
    return watch.median_ns


def _warm_up(step: Callable[[Any], object], inputs: list[Any]) -> None:
    for one in inputs:
        step(one)


@contextmanager
def _replaced(function: HotFunction, new: FunctionType) -> Iterator[None]:
    old = cast(FunctionType, function.function)
    function.replace(new)
    try:
        yield
    finally:
        function.replace(old)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the garbage collector, as between its runs in the product."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
