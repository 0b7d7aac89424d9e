"""Counts the slices that are inflated between two turns of whatever else the loop has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from lb.kserve.inflation import inflated_in_steps


class InflatedSlices:
    """Counts what is inflated by a module's own `inflated_in_steps`. Needs a running loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.total = 0
        self.most_in_a_turn = 0
        self._in_this_turn = 0
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(f"{module}.inflated_in_steps", self._counted)
        self._loop.call_soon(self._turn)

    def _counted(self, *given: Any) -> Generator[None, None, Any]:
        steps = inflated_in_steps(*given)
        while True:
            self.total += 1
            self._in_this_turn += 1
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
            yield

    def _turn(self) -> None:
        self.most_in_a_turn = max(self.most_in_a_turn, self._in_this_turn)
        self._in_this_turn = 0
        self._loop.call_soon(self._turn)
