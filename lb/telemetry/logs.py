"""The application log: one line per event on standard error, as text or as JSON.

Events are constant messages with fields in `extra`. Control characters are escaped, so that no
peer can forge a line; a reader that sleeps costs lines, never time (see `line_writer`).
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from lb.settings.choices import LogLevel
from lb.settings.reporting import LogFormat
from lb.telemetry.line_limit import LineLimit
from lb.telemetry.line_writer import LineWriter

MAX_VALUE_CHARS: Final = 4096
MAX_TRACEBACK_CHARS: Final = 16384
LINES_PER_S: Final = 10.0
LINES_AT_ONCE: Final = 100
"""Of one event, which is one message of one logger; those of level debug have no limit."""
_QUEUE_BYTES: Final = 1024 * 1024
_STDERR: Final = 2

_LEVELS: Final = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every log record: all others are fields of the event."""
_NEEDS_NO_QUOTES: Final = re.compile(r'[^\s"=\\]+')

Scalar = str | int | float | bool | None


class _EventFormatter(logging.Formatter):
    """What both formats share."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def message_of(self, record: logging.LogRecord) -> str:
        """The message; a call whose arguments do not fit is shown, not lost."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            message = f"{record.msg} {record.args!r}"
        return _cut(message)

    def fields_of(self, record: logging.LogRecord) -> dict[str, Scalar]:
        """The event's own fields, and its traceback as `exception`."""
        fields = {
            name: _scalar(value) for name, value in vars(record).items() if name not in _STANDARD
        }
        if record.exc_info and record.exc_info[0] is not None:
            # The end of a traceback says most.
            fields["exception"] = self.formatException(record.exc_info)[-MAX_TRACEBACK_CHARS:]
        return fields


class TextFormatter(_EventFormatter):
    """`TIME LEVEL LOGGER MESSAGE key=value ...`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        parts = [
            self.formatTime(record),
            record.levelname,
            record.name,
            _one_line(self.message_of(record)),
        ]
        parts += (f"{name}={_quoted(value)}" for name, value in self.fields_of(record).items())
        return " ".join(parts)


class JsonFormatter(_EventFormatter):
    """One JSON object, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        event: dict[str, Scalar] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message_of(record),
        }
        for name, value in self.fields_of(record).items():
            event[f"{name}_" if name in event else name] = value
        return json.dumps(event)


def _scalar(value: object) -> Scalar:
    """A field's value as JSON has it: what is not a number, a boolean or null becomes text."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return _cut(value.decode("utf-8", "backslashreplace"))
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."


def _one_line(text: str) -> str:
    """`text`, escaped where it would break or forge a line, or hide on a terminal."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _quoted(value: Scalar) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if value.isprintable():
        return value if _NEEDS_NO_QUOTES.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


class _LineHandler(logging.Handler):
    """Formats in the caller, writes in the writer's thread."""

    def __init__(self, writer: LineWriter, clock: Callable[[], float]) -> None:
        super().__init__()
        self._writer = writer
        self._clock = clock
        self._limit = LineLimit(LINES_PER_S, LINES_AT_ONCE)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one event. Never blocks; called under the handler's lock."""
        now = self._clock()
        kind = (record.name, record.msg if isinstance(record.msg, str) else "")
        if record.levelno <= logging.DEBUG or self._limit.admits(kind, now):
            self._write(record)
        self._tell_left_out(now)

    def close(self) -> None:
        """Tell what is still to be told."""
        self._tell_left_out(self._clock(), at_the_end=True)
        super().close()

    def _tell_left_out(self, now: float, *, at_the_end: bool = False) -> None:
        for kind, count in self._limit.left_out(now, all_of_them=at_the_end):
            name, message = kind if isinstance(kind, tuple) else ("", "")
            fields = {"of": message, "count": count}
            facts = {"name": name or __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            self._write(logging.makeLogRecord({**facts, "msg": "lines left out", **fields}))

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # a field whose __str__ fails must not fail a request
            line = f"log event from {record.name} cannot be written: {type(error).__name__}"
        self._writer.write(line.encode("utf-8", "backslashreplace") + b"\n")


class ApplicationLog:
    """The installed application log; `close` takes it away again."""

    def __init__(
        self,
        level: LogLevel,
        log_format: LogFormat,
        *,
        fd: int = _STDERR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Become the only handler of the root logger, and take Python's warnings too.

        Args:
            level: the least important events to write.
            log_format: text or JSON.
            fd: where to; stays the caller's.
            clock: monotonic seconds, for the limit of lines.
        """
        self._writer = LineWriter(fd, name="application", queue_bytes=_QUEUE_BYTES)
        self._handler = handler = _LineHandler(self._writer, clock)
        root = logging.getLogger()
        self._before: tuple[int, list[logging.Handler]] | None = (root.level, root.handlers)
        root.handlers = [handler]
        self.configured = level
        """The level that the settings ask for."""
        self._other: LogLevel | None = None
        """The level in force instead."""
        self.configure(level, log_format)
        logging.captureWarnings(True)

    def configure(self, level: LogLevel, log_format: LogFormat) -> None:
        """Write events from `level` on, in that format, from now on. A level that `override` has
        put in force stays."""
        is_json = log_format is LogFormat.JSON
        self._handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
        self.configured = level
        self.override(self._other)

    def override(self, level: LogLevel | None) -> None:
        """Write events from another level on than is configured; None: as configured."""
        self._other = level
        logging.getLogger().setLevel(_LEVELS[self.level])

    @property
    def level(self) -> LogLevel:
        """The least important events that are written."""
        return self._other or self.configured

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._writer.dropped

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s` seconds, and uninstall. Idempotent."""
        if self._before is not None:
            logging.captureWarnings(False)
            root = logging.getLogger()
            level, root.handlers = self._before
            root.setLevel(level)
            self._before = None
            self._handler.close()
        self._writer.close(timeout_s)
