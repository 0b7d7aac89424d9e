"""Settings of what the process tells: logs, metrics, and the signal for autoscalers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WrapValidator

from lb.domain.access import Audience
from lb.settings.section import Section
from lb.settings.units import Duration
from lb.settings.values import Boolean, Count, Number, keep_reference


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
    """The access log: one JSON line per finished request."""

    mode: AccessLogMode = AccessLogMode.ERRORS
    """`off`; `errors`: failed requests; `sampled`: failed ones, and a `sample` of the rest; `all`.

    Set this when you need to see successful requests, too, or no access log; otherwise only failed
    requests are logged."""
    sample: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Share of the successful requests that `sampled` logs, 0 to 1.

    Set this when `sampled` logs too much or too little; otherwise it logs every hundredth
    request."""
    path: Annotated[str, Field(min_length=1), WrapValidator(keep_reference)] = "-"
    """File to append to; `-` is standard output. SIGUSR1 reopens it, for rotation.

    Set this when a log collector reads files; otherwise lines go to standard output."""


class LogSettings(Section):
    """The application log, on standard error: changes of state, one line each."""

    level: LogLevel = LogLevel.INFO
    """The least important messages to write.

    Set this when you search for a cause (`debug`) or the log is too long (`warning`); otherwise
    changes of state are logged."""
    format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for collectors.

    Set this when a collector parses the log; otherwise it is plain text."""


class MetricsSettings(Section):
    """What the metrics listener shows."""

    backends: Boolean = True
    """Whether metrics of backends with a `metrics` address are shown among ours, with a `backend`
    label; `perf_analyzer` and Triton's dashboards read them there.

    Set this to false when Prometheus scrapes the Tritons itself; otherwise their metrics would be
    stored twice."""
    model_labels: Count = 100
    """Distinct values of the `model` label; further models are counted together as `other`.

    Set this when you serve more than a hundred models and need metrics of each; otherwise the rest
    is `other`."""


class DiagnosticsSettings(Section):
    """What clients, backends and logs learn of a single request."""

    headers: Audience = Audience.NOBODY
    """Who gets `x-triton-lb-backend`, `x-triton-lb-request-id`, `x-triton-lb-attempts` and
    `server-timing` (queue, connect, backend) with a response. In gRPC they are trailing metadata.
    `off`: nobody. `role`: callers whose token has the role `read` or `operate`; health requests
    take no token, so their responses carry none. `all`: everybody.

    Set this when you need to know which backend answered a request; otherwise responses are what
    the backend sent."""
    request_ids: Boolean = False
    """Whether requests without an `x-request-id` get one, for the backend and the access log.

    Set this when you look requests up in the logs of Tritons or models; otherwise only ids of
    clients are passed on."""


class ScalingSettings(Section):
    """How many backends the load needs: `triton_lb_desired_backends` (docs/operations.md)."""

    latency: Duration = 0.0
    """Wanted mean time of an inference, from its arrival here to the end of its response. 0s is
    twice the time that one takes on idle backends.

    Set this when an autoscaler should keep a latency goal; otherwise the goal is twice the idle
    latency."""
