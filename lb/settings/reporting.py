"""Settings of what the process tells: logs and metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WrapValidator

from lb.settings.section import Section
from lb.settings.values import Count, Number, keep_reference


class AccessLogMode(StrEnum):
    """Which requests are logged."""

    OFF = "off"
    ERRORS = "errors"
    SAMPLED = "sampled"
    ALL = "all"


class LogLevel(StrEnum):
    """The least important messages that the application log shows."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How the application log is written."""

    TEXT = "text"
    JSON = "json"


class AccessLogSettings(Section):
    """One JSON line per finished request."""

    mode: AccessLogMode = AccessLogMode.ERRORS
    """`off`; `errors`: requests that failed; `sampled`: those, and a `sample` of the rest;
    `all`."""
    sample: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Share of the good requests that `sampled` logs, 0 to 1."""
    path: Annotated[str, Field(min_length=1), WrapValidator(keep_reference)] = "-"
    """File to append to; `-` is standard output. SIGUSR1 opens it anew, for rotation."""


class LogSettings(Section):
    """The application log, on standard error: state changes, one line each."""

    level: LogLevel = LogLevel.INFO
    """The least important messages to write."""
    format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for collectors."""


class MetricsSettings(Section):
    """What the metrics listener shows."""

    backends: bool = True
    """Show the metrics of backends that have a `metrics` address among ours, with a `backend`
    label; `perf_analyzer` and Triton's dashboards read them there."""
    model_labels: Count = 100
    """Distinct values of the `model` label; further models are counted together as `other`."""
