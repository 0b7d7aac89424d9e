"""The application log: one line per event, whatever is in it, and never a wait."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from lb.domain.backend import Address, Health
from lb.settings.choices import LogLevel
from lb.settings.reporting import LogFormat
from lb.telemetry.logs import (
    LINES_AT_ONCE,
    MAX_VALUE_CHARS,
    ApplicationLog,
    JsonFormatter,
    TextFormatter,
)

LOGGER = logging.getLogger("lb.test")


def write(
    path: Path, log_format: LogFormat, level: LogLevel, events: Callable[[], object]
) -> list[str]:
    """Lines of the log while `events` runs, in a time that stands still."""
    with path.open("wb") as file:
        log = ApplicationLog(level, log_format, fd=file.fileno(), clock=lambda: 0.0)
        try:
            events()
        finally:
            log.close()
    return path.read_text().splitlines()


def text_of(message: str, **fields: object) -> str:
    """One event in text, without its time."""
    record = logging.makeLogRecord(
        {"name": "lb.test", "levelname": "INFO", "msg": message, **fields}
    )
    line = TextFormatter().format(record)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO lb\.test ", line)
    return line.split(" ", 3)[3]


def json_of(message: str, **fields: object) -> dict[str, object]:
    """One event in JSON."""
    record = logging.makeLogRecord(
        {
            "name": "lb.test",
            "levelname": "INFO",
            "msg": message,
            "created": 1.5,
            "msecs": 500,
            **fields,
        }
    )
    event: dict[str, object] = json.loads(JsonFormatter().format(record))
    return event


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gpu-0", "gpu-0"),
        ("two words", '"two words"'),
        ('say "a=b"', '"say \\"a=b\\""'),
        ("", '""'),
        ("µs", "µs"),
        ("a\nb", '"a\\nb"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("\u2028", '"\\u2028"'),
        ("\u202eevil", '"\\u202eevil"'),
        (b"\xff\n", '"\\\\xff\\n"'),
        (3, "3"),
        (0.25, "0.25"),
        (float("nan"), "nan"),
        (True, "true"),
        (None, "null"),
        (Health.HEALTHY, "healthy"),
        (Address("::1", 8000), "[::1]:8000"),
        (("a", 1), "\"('a', 1)\""),
    ],
)
def test_fields_are_readable_and_cannot_break_a_line(value: object, text: str) -> None:
    assert text_of("changed", field=value) == f"changed field={text}"


def test_a_message_cannot_break_a_line() -> None:
    assert text_of("one\ntwo\x00") == "one\\ntwo\\u0000"


def test_json_keeps_numbers_and_makes_text_of_the_rest() -> None:
    event = json_of("changed", count=3, share=0.5, backend="gpu-0", address=Address("h", 1))
    assert event == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "lb.test",
        "message": "changed",
        "count": 3,
        "share": 0.5,
        "backend": "gpu-0",
        "address": "h:1",
    }


def test_a_field_cannot_replace_a_fact_of_the_event() -> None:
    event = json_of("changed", level="forged", time="forged")
    assert (event["level"], event["level_"]) == ("info", "forged")
    assert event["time_"] == "forged"


def test_infinity_is_no_json() -> None:
    assert json_of("changed", share=float("inf"))["share"] == "inf"


def test_arguments_that_do_not_fit_are_shown() -> None:
    assert json_of("%d of %d", args=("one",))["message"] == "%d of %d ('one',)"


def test_long_values_are_cut() -> None:
    event = json_of("m" * 100_000, field="f" * 100_000)
    assert event["message"] == "m" * MAX_VALUE_CHARS + "..."
    assert event["field"] == "f" * MAX_VALUE_CHARS + "..."


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_traceback_is_part_of_the_line(tmp_path: Path, log_format: LogFormat) -> None:
    def fail() -> None:
        try:
            raise RuntimeError("first\nsecond")
        except RuntimeError:
            LOGGER.exception("task crashed", extra={"task": "probe"})

    (line,) = write(tmp_path / "log", log_format, LogLevel.INFO, fail)
    assert "RuntimeError: first\\nsecond" in line
    assert "Traceback" in line


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_flood_of_one_event_is_cut_and_told(tmp_path: Path, log_format: LogFormat) -> None:
    def speak() -> None:
        for number in range(LINES_AT_ONCE + 500):
            LOGGER.info("client broke HTTP/2", extra={"client": number})
            LOGGER.debug("every single one")
        LOGGER.info("something else")

    lines = write(tmp_path / "log", log_format, LogLevel.DEBUG, speak)
    said = [line for line in lines if "client broke" in line]
    left_out = [line for line in said if "lines left out" in line]
    assert left_out == said[LINES_AT_ONCE:]
    assert len(left_out) == 1
    assert re.search(r"count\W+500\b", left_out[0])
    assert sum("every single one" in line for line in lines) == LINES_AT_ONCE + 500
    assert any("something else" in line for line in lines)


def test_events_below_the_level_are_left_out(tmp_path: Path) -> None:
    def speak() -> None:
        LOGGER.info("quiet")
        LOGGER.warning("loud")

    (line,) = write(tmp_path / "log", LogFormat.TEXT, LogLevel.WARNING, speak)
    assert line.endswith("WARNING lb.test loud")


def test_warnings_of_python_are_events(tmp_path: Path) -> None:
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("this\nwill go", DeprecationWarning, stacklevel=1)

    lines = write(tmp_path / "log", LogFormat.JSON, LogLevel.INFO, warn)
    (event,) = (json.loads(line) for line in lines)
    assert event["logger"] == "py.warnings"
    assert "this\nwill go" in event["message"]


class Unprintable:
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_event_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    lines = write(
        tmp_path / "log",
        LogFormat.TEXT,
        LogLevel.INFO,
        lambda: LOGGER.info("event", extra={"field": Unprintable()}),
    )
    assert lines == ["log event from lb.test cannot be written: RuntimeError"]


def test_an_unread_standard_error_costs_lines_and_no_time() -> None:
    reader, fd = os.pipe()
    os.set_blocking(fd, False)
    log = ApplicationLog(LogLevel.INFO, LogFormat.TEXT, fd=fd)
    try:
        for number in range(2000):
            kind = f"event {number % 200}"  # each with a limit of its own
            LOGGER.info(kind, extra={"field": "x" * 2000})
        assert log.dropped > 0
    finally:
        log.close(timeout_s=30.0)
        os.close(reader)
        os.close(fd)


def test_closing_puts_everything_back() -> None:
    root = logging.getLogger()
    before = (root.level, root.handlers)
    log = ApplicationLog(LogLevel.DEBUG, LogFormat.TEXT, fd=2)
    log.close()
    log.close()
    assert (root.level, root.handlers) == before
