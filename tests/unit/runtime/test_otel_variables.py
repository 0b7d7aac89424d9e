"""Traces by the variables that all programs with OpenTelemetry know."""

from __future__ import annotations

from typing import Any

import pytest

from lb.runtime.otel_variables import export_options, with_variables
from lb.settings.model import Settings

ENDPOINT = "http://collector:4318"


def tracing(environ: dict[str, str], **own: Any) -> Any:
    tree = {"listen": {"http": "127.0.0.1:0"}, "tracing": own}
    return with_variables(Settings.model_validate(tree), environ).tracing


def test_without_variables_the_settings_stay_as_they_are() -> None:
    settings = Settings.model_validate({"listen": {"http": "127.0.0.1:0"}})
    assert with_variables(settings, {"OTEL_TRACES_SAMPLER": "always_on"}) is settings


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, f"{ENDPOINT}/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": f"{ENDPOINT}/"}, f"{ENDPOINT}/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{ENDPOINT}/x"}, f"{ENDPOINT}/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, ""),
    ],
)
def test_a_variable_says_where_spans_go(environ: dict[str, str], endpoint: str) -> None:
    assert tracing(environ).endpoint == endpoint


def test_what_the_file_sets_wins_but_for_the_switch() -> None:
    own = {"endpoint": "http://own/v1/traces", "ratio": 0.5, "headers": {"a": "1"}}
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT,
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_EXPORTER_OTLP_HEADERS": "b=2",
    }
    found = tracing(environ, **own)
    assert (found.endpoint, found.ratio, found.headers) == tuple(own.values())
    assert tracing({"OTEL_SDK_DISABLED": "True"}, **own).endpoint == ""


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio"),
    [
        ("always_on", "", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "", 1.0),
        ("parentbased_traceidratio", "7", 0.01),
        ("jaeger_remote", "0.5", 0.01),
    ],
)
def test_samplers_are_ratios(sampler: str, argument: str, ratio: float) -> None:
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert tracing(environ, endpoint=f"{ENDPOINT}/v1/traces").ratio == ratio


def test_headers_are_pairs_with_escapes() -> None:
    environ = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20x, a=b%3Dc,,=d"}
    found = tracing(environ, endpoint=f"{ENDPOINT}/v1/traces")
    assert found.headers == {"authorization": "Bearer x", "a": "b=c"}


def test_the_resource_and_the_time_for_a_request_come_from_variables() -> None:
    settings = Settings.model_validate({"listen": {"http": "127.0.0.1:0"}})
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=no,host.name=a%20b",
        "OTEL_SERVICE_NAME": "edge",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    found = export_options(settings, environ, version="1.0", instance="i")
    assert found.timeout_s == 2.5
    assert found.is_compressed
    assert found.resource == {
        "service.name": "edge", "service.version": "1.0", "service.instance.id": "i",
        "host.name": "a b",
    }  # fmt: skip
    assert export_options(settings, {}, version="1.0", instance="i").resource["service.name"] == (
        "triton-lb"
    )
