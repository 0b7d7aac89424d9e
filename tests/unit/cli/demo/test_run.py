"""The demo with a stand-in for the load balancer: how it goes on, and every way it ends."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from lb.cli.demo.acts import Timeline
from lb.cli.demo.balancer import free_listeners
from lb.cli.demo.run import demonstrate

BRIEF = Timeline((0.3, 0.9, 1.5), 2.2)

Serve = Callable[[Path], Sequence[str]]


def stand_in(*models: str) -> Serve:
    return lambda config: (sys.executable, "-m", "tests.fakes.demo_balancer", str(config), *models)


async def play(backends: int, timeline: Timeline, serve: Serve) -> int:
    """A demo that leaves the usual ports to others."""
    return await demonstrate(backends, timeline, serve, free_listeners)


def failing(config: Path) -> Sequence[str]:
    # Two of them write to one log: each line in one call.
    return (sys.executable, "-c", "import os; os.write(2, b'no such setting\\n'); os._exit(1)")


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = psutil.Process().children()
    yield
    assert [child for child in psutil.Process().children() if child not in before] == []


async def test_once_ends_with_one_when_answers_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await play(1, BRIEF, stand_in("sleeper")) == 1
    shown = capsys.readouterr()
    assert re.search(r"HTTP   0 right, 0 wrong, [1-9]\d* failed", shown.out)
    assert "triton-lb demo: not every answer was right" in shown.err


async def test_load_balancer_that_does_not_start_ends_the_demo(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await play(1, BRIEF, failing) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("triton-lb demo: the load balancer")
    assert "ended with 1\n  | no such setting\n" in shown


async def test_signal_before_the_end_of_once_is_a_failure() -> None:
    signals: list[signal.Signals] = []

    def serve(config: Path) -> Sequence[str]:
        if not signals:
            signals.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return stand_in()(config)

    assert await play(1, BRIEF, serve) == 1
