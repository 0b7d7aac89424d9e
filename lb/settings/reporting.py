"""Settings of what the process tells: logs, metrics, and the signal for autoscalers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, WrapValidator

from lb.domain.access import Audience
from lb.settings.choices import LogLevel
from lb.settings.problems import Finding
from lb.settings.section import Section
from lb.settings.units import Size
from lb.settings.values import Boolean, Count, FileName, Number, keep_reference


class AccessLogMode(StrEnum):
    """Which requests are logged."""

    OFF = "off"
    ERRORS = "errors"
    SAMPLED = "sampled"
    ALL = "all"


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


OTHER_MODELS: Final = "*"
"""Stands in `payload_log.models` for all models that are not named there."""


class PayloadLogSettings(Section):
    """The payload log: a sample of inferences with their tensors, two JSON lines for each. The
    lines may hold personal data ([The payload log](payload-log.md))."""

    path: FileName | None = None
    """File to append to. SIGUSR1 reopens it, for rotation.

    Set this when you log payloads; otherwise nothing is logged."""
    models: dict[str, Annotated[Number, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Share of the inferences to log, 0 to 1, by model name as clients write it. `"*"` stands for
    all other models.

    Set this when you need the tensors of a model, for monitoring drift or for replaying them;
    otherwise nothing is logged."""
    leave_out: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Names of tensors, request parameters and JSON members whose values are not logged. With such
    names, a payload that triton-lb cannot read is left out as a whole.

    Set this when some inputs or outputs must not be stored; otherwise all of a payload is
    logged."""
    max_payload_bytes: Annotated[Size, Field(ge=1)] = 1 << 20
    """Size of one request or response; a larger one is logged without its data.

    Set this when your tensors are larger and you need them; otherwise 1 MiB is the limit."""
    max_bytes_per_second: Annotated[Size, Field(ge=1024)] = 1 << 20
    """Bytes written per second on average. What is sampled beyond it waits in memory.

    Set this when the log must grow faster, or the disk needs more protection; otherwise it grows
    by 84 GiB a day at most."""
    memory_bytes: Annotated[Size, Field(ge=1024)] = 16 << 20
    """Payloads held at once, until they are written; those beyond it are dropped and counted. They
    are part of `limits.memory_bytes`, of which they use no more than half.

    Set this when bursts of large payloads are dropped (`triton_lb_log_dropped_total`); otherwise
    16 MiB are held."""

    def broken_rules(self) -> Iterator[Finding]:
        """A sample needs a file."""
        if self.path is None and self.is_on:
            yield ("path",), "needed to log what payload_log.models asks for"

    @property
    def is_on(self) -> bool:
        """Whether inferences of any model are logged."""
        return any(self.models.values())


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
