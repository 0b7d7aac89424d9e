from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.kubernetes import KubernetesSettings


def test_a_service_in_the_namespace_of_our_pod_is_the_usual_case() -> None:
    settings = KubernetesSettings(service="triton", http_port="http")
    assert settings.name == "kubernetes:triton:http"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"service": "t", "grpc_port": 8001}, "kubernetes:t:8001"),
        ({"service": "t", "namespace": "n", "http_port": "h"}, "kubernetes:n/t:h"),
        ({"selector": "app=t,!old", "http_port": "h"}, "kubernetes:[app=t,!old]:h"),
        (
            {"service": "t", "http_port": 1, "kubeconfig": "/k", "context": "c"},
            "kubernetes:c@/k/t:1",
        ),
    ],
)
def test_sources_that_differ_have_names_that_differ(settings: dict[str, object], name: str) -> None:
    assert KubernetesSettings.model_validate(settings).name == name


@pytest.mark.parametrize(
    ("port", "read"), [(80, 80), ("80", 80), ("http", "http"), ("http-1", "http-1")]
)
def test_a_port_is_a_name_or_a_number(port: object, read: object) -> None:
    assert KubernetesSettings.model_validate({"service": "t", "http_port": port}).http_port == read


@pytest.mark.parametrize("port", [0, 65536, True, "HTTP", "-x", "", "x" * 64, 1.5, []])
def test_a_port_that_does_not_exist_is_refused(port: object) -> None:
    with pytest.raises(ValidationError, match="expected the name or the number of a port"):
        KubernetesSettings.model_validate({"http_port": port})


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a/b", "x" * 254])
def test_a_name_that_kubernetes_cannot_have_is_refused(name: str) -> None:
    for key in ("service", "namespace"):
        with pytest.raises(ValidationError):
            KubernetesSettings.model_validate({"service": "t", "http_port": 1, key: name})


@pytest.mark.parametrize("selector", ["", " ", "a=\n", "ä=b", "a" * 2001])
def test_a_selector_is_one_line(selector: str) -> None:
    with pytest.raises(ValidationError):
        KubernetesSettings(selector=selector, http_port=1)
