"""Tells when the host slowed the processors of this machine, for benchmarks that measure latency.

    python -m benchmarks.host_pauses SECONDS

A virtual machine shares processors with others. For tens of milliseconds at a time they may execute
everything 3 to 15 times slower, and no steal time is counted. All processes are late then, whatever
is measured.

A watcher per processor executes the same short piece of Python every 1.5 ms, about 3 % of the time.
It measures the CPU time of its thread. Time in the run queue is no part of that, so a piece takes
long if the processor is slow, and not if other processes of this machine are busy.

The command prints how long pieces took, as multiples of their median, and the pauses. Run it again
beside busy loops to see that these make no pauses.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from argparse import ArgumentParser
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from lb.testing.processes import Child

_INTERVAL_S: Final = 0.0015
_PIECE: Final = range(400)
"""Takes 20 to 50 us."""
_SLOW: Final = 2.5
"""A slow piece takes this many times the median. Other work in the caches hardly makes it twice."""
_SLOW_PIECES: Final = 3
"""A pause has at least this many slow pieces. An interrupt makes a single one slow."""
_GAP_S: Final = 0.01
"""The longest time from one slow piece of a pause to the next one."""
_EDGES: Final = (0, 0.5, 1.5, 2, 2.5, 3, 4, 6, 8, 12, np.inf)
"""Multiples of the median between which `main` counts pieces."""

Floats = npt.NDArray[np.float64]


@contextmanager
def watching() -> Iterator[list[Floats]]:
    """Watch all processors.

    Yields:
        a list that gets an array per processor at the end. It has a row per piece: when the piece
        began, by `time.monotonic`, and its CPU time in seconds.
    """
    watched: list[Floats] = []
    with TemporaryDirectory() as folder:
        paths = [Path(folder, str(each)) for each in sorted(os.sched_getaffinity(0))]
        with ExitStack() as stack:
            for path in paths:
                watch = ["--watch", path.name, str(path)]
                command = [sys.executable, "-m", "benchmarks.host_pauses", *watch]
                child = Child(f"watcher of processor {path.name}", command)
                stack.callback(child.close)
                child.wait_until(path.exists)
            yield watched
        watched += [np.fromfile(path).reshape(-1, 2) for path in paths]


def pauses(watched: Sequence[Floats]) -> list[tuple[float, float]]:
    """Return begin and end of the pauses of any processor, by `time.monotonic`, in order.

    Args:
        watched: what `watching` has yielded.
    """
    found = [each for pieces in watched for each in _pauses(pieces)]
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _pauses(pieces: Floats) -> list[tuple[float, float]]:
    """Return the pauses of one processor."""
    began, took = pieces.T
    slow = np.flatnonzero(took > _SLOW * np.median(took))
    bursts = np.split(slow, np.flatnonzero(np.diff(began[slow]) > _GAP_S) + 1)
    return [
        (float(began[each[0]]), float(began[each[-1]] + took[each[-1]]))
        for each in bursts
        if len(each) >= _SLOW_PIECES
    ]


def summary(watched: Sequence[Floats]) -> str:
    """Return how many pauses there were, and how long they were, as a sentence."""
    lengths_ms = np.array([1000 * (end - begin) for begin, end in pauses(watched)])
    if not lengths_ms.size:
        return "The host made no pauses."
    watched_s = watched[0][-1, 0] - watched[0][0, 0]
    low, high = np.percentile(lengths_ms, (50, 90))
    return (
        f"The host made {lengths_ms.size} pauses in {watched_s:.0f} s. The median is {low:.0f} ms, "
        f"90 % are below {high:.0f} ms, and the longest is {lengths_ms.max():.0f} ms."
    )


def near(
    moments: Floats, found: Sequence[tuple[float, float]], *, before_s: float, after_s: float
) -> npt.NDArray[np.bool_]:
    """Return which moments are in a pause, or close to one.

    Args:
        moments: by `time.monotonic`.
        found: the pauses.
        before_s: how long before the begin of a pause is close to it.
        after_s: how long after its end is close to it.
    """
    is_near = np.zeros(moments.size, dtype=np.bool_)
    for begin, end in found:
        is_near |= (begin - before_s <= moments) & (moments <= end + after_s)
    return is_near


def _watch(processor: int, path: str) -> NoReturn:
    """Be the watcher of a processor until SIGTERM."""
    os.sched_setaffinity(0, {processor})
    with suppress(PermissionError):  # without it pieces are rarer on a busy processor
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    samples = array("d")  # written at the end: a file system may be busy
    with Path(path).open("wb") as file:
        try:
            while True:
                time.sleep(_INTERVAL_S)
                began, before_s, total = time.monotonic(), time.thread_time(), 0
                for number in _PIECE:
                    total += number
                samples.extend((began, time.thread_time() - before_s))
        finally:
            samples.tofile(file)


def main() -> None:
    """Watch for some seconds, and print what was seen."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    parser.add_argument("--watch", nargs=2, metavar=("PROCESSOR", "FILE"), help="be a watcher")
    given = parser.parse_args()
    if given.watch:
        _watch(int(given.watch[0]), given.watch[1])
    with watching() as watched:
        time.sleep(given.seconds)
    for processor, pieces in enumerate(watched):
        took = pieces[:, 1]
        counts, _ = np.histogram(took / np.median(took), _EDGES)
        bins = zip(pairwise(_EDGES), counts, strict=True)
        shown = ", ".join(f"{low:g} to {high:g}: {count}" for (low, high), count in bins)
        print(f"processor {processor}: {1e6 * np.median(took):.0f} us, {shown}")
    print(summary(watched))


if __name__ == "__main__":
    main()
