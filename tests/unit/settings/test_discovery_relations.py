from __future__ import annotations

from typing import Any

import pytest

from tests.unit.settings.test_relations import told

HOST: dict[str, Any] = {"host": "a.example", "http_port": 8000}


def findings(**discovery: object) -> list[str]:
    return told({"discovery": discovery})


def of_dns(**entry: object) -> list[str]:
    return [each.removeprefix("discovery.dns[0]") for each in findings(dns=[entry])]


@pytest.mark.parametrize(
    "entry",
    [
        HOST,
        {"host": "a", "grpc_port": 1, "servers": ["10.0.0.2:53", "[::1]:53"]},
        {"http_service": "a", "grpc_service": "b", "metrics_service": "c"},
        {**HOST, "refresh_min": "2s", "refresh_max": "2s"},
    ],
)
def test_a_complete_look_up_breaks_no_rule(entry: dict[str, object]) -> None:
    assert of_dns(**entry) == []


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({}, [": host, http_service or grpc_service is needed"]),
        ({"metrics_service": "a"}, [": host, http_service or grpc_service is needed"]),
        ({"host": "a"}, [": at least one of http_port and grpc_port is needed"]),
        (
            {**HOST, "grpc_service": "b"},
            [".grpc_service: there is a host already: give its port instead"],
        ),
        ({"http_service": "a", "family": "ipv4"}, [".family: only with host"]),
        ({"http_service": "a", "grpc_port": 1}, [".grpc_port: only with host"]),
        (
            {**HOST, "servers": ["ns.example:53"]},
            [
                ".servers[0]: expected the IP address of a DNS server and its port,"
                " got 'ns.example:53'"
            ],
        ),
        ({**HOST, "refresh_min": "1m"}, [".refresh_max: is less than refresh_min"]),
        (
            {**HOST, "backend": {"name": "x", "weight": 2}},
            [".backend.name: is found by DNS and cannot be given"],
        ),
        (
            {**HOST, "backend": {"tls": {"key": "k"}}},
            [".backend.tls.key: needs certificate, too"],
        ),
    ],
)
def test_what_contradicts_itself_is_found(entry: dict[str, object], found: list[str]) -> None:
    assert of_dns(**entry) == found


def test_nothing_is_followed_twice() -> None:
    assert findings(files=["a", "b", "a"]) == ["discovery.files[2]: 'a' is given twice"]
    message = "'a.example' is already looked up by discovery.dns[0]"
    assert findings(dns=[HOST, HOST]) == [f"discovery.dns[1]: {message}"]
