"""Variables of the environment that configure traces in every program with OpenTelemetry.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and, for the
exporter, https://opentelemetry.io/docs/specs/otel/protocol/exporter/. What the configuration file
sets wins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from pydantic import ValidationError

from lb.settings.model import Settings
from lb.settings.tracing import TracingSettings
from lb.telemetry.export_options import ExportOptions

_log = logging.getLogger(__name__)

_EXPORTER: Final = "OTEL_EXPORTER_OTLP_"
_TIMEOUT_S: Final = 10.0
_SAMPLERS: Final[Mapping[str, float | None]] = {
    "always_on": 1.0,
    "always_off": 0.0,
    "traceidratio": None,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
    "parentbased_traceidratio": None,
}
"""Ratio of requests without a parent; None: `OTEL_TRACES_SAMPLER_ARG` says it."""


def with_variables(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings, with what the environment says of traces where they say nothing.

    A value that makes no sense is left out and logged, as the specification wants it.

    Args:
        settings: those of the file.
        environ: variables; an empty one counts as missing.
    """
    own = settings.tracing
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return settings.model_copy(update={"tracing": own.model_copy(update={"endpoint": ""})})
    found = {
        key: value
        for key, value in _tracing(environ).items()
        if value and key not in own.model_fields_set
    }
    if not (found.get("endpoint") or own.endpoint):
        return settings
    read = {name: value for key, text in found.items() for name, value in _read(key, text).items()}
    return settings.model_copy(update={"tracing": own.model_copy(update=read)})


def _tracing(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says, by the names of the settings."""
    return {
        "endpoint": _endpoint(environ),
        "headers": _pairs(_of_traces(environ, "HEADERS")),
        "ratio": _ratio(environ),
    }


def _read(key: str, value: Any) -> dict[str, Any]:
    """A setting by its name, as the file would have it; nothing if it makes no sense."""
    endpoint = {"endpoint": "http://localhost"}
    try:
        section = TracingSettings.model_validate({**endpoint, key: value})
    except ValidationError:
        _log.warning("a variable of OpenTelemetry makes no sense", extra={"setting": key})
        return {}
    return {key: getattr(section, key)}


def _of_traces(environ: Mapping[str, str], name: str) -> str:
    """A variable of the exporter: that for traces, or else that for all signals."""
    return environ.get(f"{_EXPORTER}TRACES_{name}", "") or environ.get(_EXPORTER + name, "")


def _endpoint(environ: Mapping[str, str]) -> str:
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return ""
    own = environ.get(f"{_EXPORTER}TRACES_ENDPOINT", "")
    common = environ.get(f"{_EXPORTER}ENDPOINT", "")
    return own or (f"{common.rstrip('/')}/v1/traces" if common else "")


def _ratio(environ: Mapping[str, str]) -> str:
    """The ratio as text; empty where the environment does not say it."""
    sampler = environ.get("OTEL_TRACES_SAMPLER", "")
    if sampler not in _SAMPLERS:
        return ""
    ratio = _SAMPLERS[sampler]
    return environ.get("OTEL_TRACES_SAMPLER_ARG", "") or "1" if ratio is None else str(ratio)


def _pairs(text: str) -> dict[str, str]:
    """`key=value,...` with values percent-encoded."""
    found = {}
    for pair in text.split(","):
        key, mark, value = pair.partition("=")
        if mark and key.strip():
            found[key.strip()] = unquote(value.strip())
    return found


def export_options(
    settings: Settings, environ: Mapping[str, str], *, version: str, instance: str
) -> ExportOptions:
    """Where spans go, and what they say of this process.

    Args:
        settings: by `with_variables`.
        environ: variables.
        version: of this program.
        instance: an id of this process.
    """
    resource = {
        "service.name": "triton-lb",
        "service.version": version,
        "service.instance.id": instance,
        **_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    }
    if name := environ.get("OTEL_SERVICE_NAME", ""):
        resource["service.name"] = name
    timeout_ms = _of_traces(environ, "TIMEOUT")
    timeout_s = int(timeout_ms) / 1000 if timeout_ms.isdecimal() else 0.0
    return ExportOptions(
        endpoint=settings.tracing.endpoint,
        headers=settings.tracing.headers,
        timeout_s=timeout_s or _TIMEOUT_S,
        resource=resource,
        version=version,
        is_compressed=_of_traces(environ, "COMPRESSION") == "gzip",
    )
