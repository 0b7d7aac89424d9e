"""The level of the application log, changed for a time while the process runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from lb.admin.models import LogLevelInForce
from lb.net.timers import Timer
from lb.settings.choices import LogLevel
from lb.telemetry.logs import ApplicationLog

_log = logging.getLogger(__name__)


class LogLevelSwitch:
    """Puts a level in force, and the configured one back when its time is over."""

    def __init__(
        self,
        log: ApplicationLog,
        after: Callable[[float, Callable[[], None]], Timer],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            log: whose level it is.
            after: calls something after so many seconds.
            clock: monotonic seconds.
        """
        self._app_log = log
        self._after = after
        self._clock = clock
        self._timer: Timer | None = None
        self._ends_at = 0.0

    def change(self, level: LogLevel, for_s: float) -> LogLevelInForce:
        """Put a level in force for so many seconds; 0 ends that. Returns what is in force."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if for_s:
            # Before the change where that leaves such messages out.
            _log.warning("log level changed", extra={"level": level.value, "seconds": for_s})
            self._app_log.override(level)
            self._ends_at = self._clock() + for_s
            self._timer = self._after(for_s, self._end)
        else:
            self._end()
        return LogLevelInForce(
            level=self._app_log.level.value,
            configured=self._app_log.configured.value,
            left_s=round(max(self._ends_at - self._clock(), 0.0), 3) if for_s else 0.0,
        )

    def _end(self) -> None:
        self._timer = None
        self._app_log.override(None)
        _log.warning("log level is as configured", extra={"level": self._app_log.level.value})
