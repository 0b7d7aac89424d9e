"""Settings of the fronts, and what the platforms' environment adds to them."""

from __future__ import annotations

import pytest

from lb.domain.backend import Address
from lb.settings.fronts import Inference, Ping
from lb.settings.model import Settings
from lb.settings.problems import SettingsError
from lb.settings.reading import read_settings

BASE = """
listen: {http: "127.0.0.1:8000"}
backends: [{http: "127.0.0.1:18000"}]
"""


def read(fronts: str, **env: str) -> Settings:
    def read_file(_path: str) -> str:
        raise FileNotFoundError

    return read_settings(f"{BASE}fronts: {fronts}\n", env, read_file)


def problems(fronts: str, **env: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        read(fronts, **env)
    return [str(problem) for problem in raised.value.problems]


SAGEMAKER_ENVIRONMENT = {
    "SAGEMAKER_BIND_TO_PORT": "8100",
    "SAGEMAKER_SAFE_PORT_RANGE": "8000-8999",
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "ensemble",
    "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate",
    "SAGEMAKER_TRITON_PING_MODE": "live",
    "SAGEMAKER_MULTI_MODEL": "true",
}


def test_fronts_are_off_whatever_the_environment_says() -> None:
    settings = read("{}", AIP_MODE="PREDICTION", **SAGEMAKER_ENVIRONMENT)

    assert not settings.fronts.sagemaker.enabled
    assert not settings.fronts.vertex.enabled


def test_the_environment_says_what_an_enabled_front_leaves_out() -> None:
    front = read("{sagemaker: {enabled: true}}", **SAGEMAKER_ENVIRONMENT).fronts.sagemaker

    assert front.address == Address("0.0.0.0", 8100)
    assert front.default_model == "ensemble"
    assert front.inference is Inference.GENERATE
    assert front.ping is Ping.LIVE
    assert front.multi_model


def test_what_is_given_counts_more_than_the_environment() -> None:
    given = (
        '{sagemaker: {enabled: true, address: "127.0.0.1:8081", default_model: m, '
        "inference: infer, ping: ready, multi_model: false}}"
    )

    front = read(given, **SAGEMAKER_ENVIRONMENT).fronts.sagemaker

    assert front.address == Address("127.0.0.1", 8081)
    assert (front.default_model, front.inference) == ("m", Inference.INFER)
    assert (front.ping, front.multi_model) == (Ping.READY, False)


def test_vertex_takes_its_routes_and_port_from_the_environment() -> None:
    front = read(
        "{vertex: {enabled: true}}",
        AIP_MODE="PREDICTION",
        AIP_HTTP_PORT="8090",
        AIP_HEALTH_ROUTE="/health",
        AIP_PREDICT_ROUTE="/predict",
    ).fronts.vertex

    assert front.enabled
    assert (front.health_route, front.predict_route) == ("/health", "/predict")
    assert front.address == Address("0.0.0.0", 8090)


def test_vertex_stays_off_in_a_container_that_does_not_predict() -> None:
    assert not read("{vertex: {enabled: true}}", AIP_MODE="TRAINING").fronts.vertex.enabled


def test_an_empty_mode_is_as_good_as_none() -> None:
    vertex = "{vertex: {enabled: true, health_route: /h, predict_route: /p}}"

    assert read(vertex, AIP_MODE="").fronts.vertex.enabled


@pytest.mark.parametrize("enabled", ["true", "1"])
def test_a_front_that_a_variable_enables_is_like_any_other(enabled: str) -> None:
    front = '{sagemaker: {enabled: "${ON}"}}'
    settings = read(front, ON=enabled, **SAGEMAKER_ENVIRONMENT)

    assert settings == read("{sagemaker: {enabled: true}}", **SAGEMAKER_ENVIRONMENT)
    assert not read(front, ON="false").fronts.sagemaker.enabled
    assert problems('{vertex: {enabled: "${ON}"}}', ON=enabled)[0].startswith(
        "fronts.vertex.health_route: must be given"
    )


def test_a_front_is_on_or_off() -> None:
    (problem,) = problems("{sagemaker: {enabled: perhaps}}")

    assert problem.startswith("fronts.sagemaker.enabled: ")


def test_vertex_needs_its_routes() -> None:
    assert problems("{vertex: {enabled: true}}") == [
        "fronts.vertex.health_route: must be given, here or by AIP_HEALTH_ROUTE",
        "fronts.vertex.predict_route: must be given, here or by AIP_PREDICT_ROUTE",
    ]


@pytest.mark.parametrize("name", ["a/b", "a b", "", "..", "a%20b", "a?b"])
def test_a_default_model_stands_in_a_path(name: str) -> None:
    (problem,) = problems(f'{{sagemaker: {{enabled: true, default_model: "{name}"}}}}')

    assert problem.startswith("fronts.sagemaker.default_model: not a name")


def test_a_range_of_ports_is_two_numbers() -> None:
    (problem,) = problems("{sagemaker: {enabled: true}}", SAGEMAKER_SAFE_PORT_RANGE="8000")

    assert problem.startswith("fronts.sagemaker.safe_port_range: expected LOW-HIGH")


def test_a_section_that_is_no_mapping_is_a_problem() -> None:
    assert problems("3")
    assert problems("{sagemaker: 3}")
