"""Settings of traces: where they are sent, and which requests are traced."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from lb.settings.problems import Finding, show
from lb.settings.section import Section
from lb.settings.values import HeaderName, HeaderValue, Number, PositiveCount


def _check_url(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"expected a URL such as http://127.0.0.1:4318/v1/traces, got {show(url)}")
    return url


class UnsampledMode(StrEnum):
    """What backends see of trace contexts that are not sampled."""

    STRIP = "strip"
    PASS = "pass"


class SampledBy(StrEnum):
    """Whose sampled flag counts."""

    ANYONE = "anyone"
    TRUSTED_PROXIES = "trusted_proxies"


class TracingSettings(Section):
    """Traces of requests, sent to a collector as OTLP over HTTP (docs/tracing.md)."""

    endpoint: Annotated[str, AfterValidator(_check_url)] = ""
    """URL of the collector, with its path: `http://127.0.0.1:4318/v1/traces`. Without it, nothing
    is traced. The variables `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and `OTEL_EXPORTER_OTLP_ENDPOINT`
    stand in for it.

    Set this when you have a collector for OTLP, such as the one of OpenTelemetry or Jaeger;
    otherwise nothing is traced."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers for the collector, such as `authorization`.

    Set this when the collector wants credentials; otherwise none are sent."""
    ratio: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Share of requests that are traced, 0 to 1, among those without a trace context. A request
    with one is traced exactly if its caller traces it.

    Set this when one request in a hundred is too few or too many; otherwise that suits."""
    unsampled: UnsampledMode = UnsampledMode.STRIP
    """What backends see of trace contexts that are not sampled. `strip`: nothing, since a Triton
    records every request with a context, sampled or not. `pass`: what the client sent.

    Set this to pass when something behind Triton needs the ids of all requests; otherwise Tritons
    record only what is traced."""
    from_: SampledBy = SampledBy.ANYONE
    """Whose decision to trace a request counts: that of `anyone`, or of clients among
    `listen.trusted_proxies`. The requests of others count as if they had no trace context.

    Set this to trusted_proxies when strangers reach the ports; otherwise each of them can have
    its requests traced, up to `max_spans_per_second`."""
    max_spans_per_second: PositiveCount = 1000
    """Spans a second at most, about three for each request. Requests beyond that are not traced.

    Set this when the collector takes more or less; otherwise a thousand suits."""

    def broken_rules(self) -> Iterator[Finding]:
        """Return what is wrong between values of this section."""
        if self.headers and not self.endpoint:
            yield ("headers",), "there is no endpoint that they could go to"
