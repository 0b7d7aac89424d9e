"""What the observing backend tells about one request, and how it is asked."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import NamedTuple

GOOD_MODEL = b"good"
"""Answered at once with an echo; everything else counts as part of a flood."""
BIG_MODEL = b"big"
"""Answered with `BIG_BYTES`."""
BIG_BYTES = 4 << 20
HANG_MODEL = b"hang"
"""Never answered."""


STREAM_PATH = b"/inference.GRPCInferenceService/ModelStreamInfer"
"""Never answered either, whatever the model: counts from its head on."""


class Handled(NamedTuple):
    """One request of a flood, times of the monotonic clock."""

    started: float
    ended: float
    """0 while it runs."""
    how: str
    """answered, cancelled or lost (with its connection)."""


@dataclass(frozen=True)
class Observation:
    """Counters of the backend since they were last cleared."""

    good: int
    flood: int
    in_flight: int
    """Requests of the flood that are running."""
    peak: int
    """Most of them at once."""
    connections: int
    sent_bytes: int
    """Written of big answers."""
    handled: tuple[Handled, ...]


class Observer:
    """Asks a running backend."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._lines = self._socket.makefile("rwb")

    def _ask(self, word: str) -> bytes:
        self._lines.write(word.encode() + b"\n")
        self._lines.flush()
        return self._lines.readline()

    def clear(self) -> None:
        """Forget what has ended."""
        self._ask("clear")

    def look(self) -> Observation:
        """Counters as they are now."""
        found = json.loads(self._ask("look"))
        handled = tuple(Handled(*each) for each in found.pop("handled"))
        return Observation(**found, handled=handled)

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()
