from __future__ import annotations

from typing import Any

import pytest

from tests.unit.settings.test_relations import told

SERVICE: dict[str, Any] = {"service": "triton", "http_port": "http"}


def findings(*entries: dict[str, Any]) -> list[str]:
    found = told({"discovery": {"kubernetes": list(entries)}})
    return [each.removeprefix("discovery.kubernetes") for each in found]


@pytest.mark.parametrize(
    "entry",
    [
        SERVICE,
        {"selector": "a=b", "grpc_port": 8001, "metrics_port": "m"},
        {**SERVICE, "kubeconfig": "k", "context": "c", "backend": {"tls": {"ca": "f"}}},
    ],
)
def test_a_complete_source_breaks_no_rule(entry: dict[str, Any]) -> None:
    assert findings(entry) == []


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"http_port": 1}, "[0]: service or selector is needed"),
        ({**SERVICE, "selector": "a=b"}, "[0].selector: there is a service already"),
        ({"service": "t", "metrics_port": 1}, "[0]: at least one of http_port and grpc_port is"),
        ({**SERVICE, "context": "c"}, "[0].context: only with kubeconfig"),
        (
            {**SERVICE, "backend": {"http": "a:1"}},
            "[0].backend.http: is found through the API and cannot be given",
        ),
        ({**SERVICE, "backend": {"tls": {"key": "k"}}}, "[0].backend.tls.key: needs certificate"),
    ],
)
def test_what_contradicts_itself_is_found(entry: dict[str, Any], found: str) -> None:
    (finding,) = findings(entry)
    assert finding.startswith(found)


def test_nothing_is_followed_twice() -> None:
    other = {**SERVICE, "http_port": "http-1"}
    message = "[2]: the same endpoints are already found by discovery.kubernetes[0]"
    assert findings(SERVICE, other, {**SERVICE, "grpc_port": "grpc"}) == [message]
