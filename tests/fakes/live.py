"""Where a live document reads in tests: a pool, a meter, and what a test adds."""

from __future__ import annotations

import json
from typing import Any

from lb.admin.live import LiveSources, LiveView
from lb.admin.live_document import LiveDocument
from lb.control.directory import BackendDirectory
from lb.telemetry.counts import RerunCounts
from lb.telemetry.meter import Meter


class FakeClock:
    """Monotonic seconds that a test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def live_sources(
    directory: BackendDirectory, meter: Meter | None = None, **others: Any
) -> LiveSources:
    """Sources without a queue, scheduled models and retries, unless `others` has them."""
    usual: dict[str, Any] = {
        "version": "1.2.3",
        "wall": lambda: 1_800_000_000.0,
        "queued": lambda: 0,
        "oldest_s": lambda _: 0.0,
        "model_queues": lambda _: (),
        "model_backends": lambda _: (),
        "wait_reasons": dict,
        "reruns": RerunCounts,
        "hedges": dict,
        "replicas": tuple,
    }
    return LiveSources(directory=directory, meter=meter or Meter(), **{**usual, **others})


def read_live(view: LiveView) -> LiveDocument:
    """Make a new document and return it."""
    for _ in view.make():
        pass
    document: LiveDocument = json.loads(view.text)
    return document
