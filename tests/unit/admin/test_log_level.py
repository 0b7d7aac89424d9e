"""The level of the log changes for a time, and the configured one comes back."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest

from lb.admin.log_level import LogLevelSwitch
from lb.net.timers import Timer
from lb.settings.choices import LogLevel
from lb.settings.reporting import LogFormat
from lb.telemetry.logs import ApplicationLog

DEBUG, INFO, WARNING, ERROR = LogLevel.DEBUG, LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR


class Stage:
    """A switch whose timers ring when they are told to."""

    def __init__(self, log: ApplicationLog) -> None:
        self.log = log
        self.timers: list[Timer] = []
        self.switch = LogLevelSwitch(log, self._after, lambda: 100.0)

    def _after(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(100.0 + seconds, act))
        return self.timers[-1]

    def ring(self) -> None:
        for timer in self.timers:
            timer.callback()


@pytest.fixture
def stage() -> Iterator[Stage]:
    out = os.open(os.devnull, os.O_WRONLY)
    log = ApplicationLog(INFO, LogFormat.TEXT, fd=out)
    yield Stage(log)
    log.close()
    os.close(out)


def in_force() -> int:
    return logging.getLogger().level


def test_a_level_lasts_for_its_time(stage: Stage) -> None:
    found = stage.switch.change(DEBUG, 600.0)
    assert (found.level, found.configured, found.left_s) == ("debug", "info", 600.0)
    assert in_force() == logging.DEBUG
    stage.ring()
    assert in_force() == logging.INFO


def test_the_last_change_counts(stage: Stage) -> None:
    stage.switch.change(DEBUG, 600.0)
    stage.switch.change(ERROR, 60.0)
    assert in_force() == logging.ERROR
    found = stage.switch.change(DEBUG, 0.0)
    assert (found.level, found.left_s) == ("info", 0.0)
    stage.ring()
    assert in_force() == logging.INFO


def test_a_reload_does_not_end_it_and_is_not_forgotten(stage: Stage) -> None:
    stage.switch.change(DEBUG, 600.0)
    stage.log.configure(WARNING, LogFormat.JSON)
    assert in_force() == logging.DEBUG
    stage.ring()
    assert in_force() == logging.WARNING
