from __future__ import annotations

from typing import Any

import pytest

from lb.settings.discovery_relations import check_any_source, check_discovery
from lb.settings.problems import format_path

HOST: dict[str, Any] = {"host": "a.example", "http_port": 8000}


def findings(**discovery: object) -> list[str]:
    found = check_discovery({"discovery": discovery})
    return [f"{format_path(path)}: {message}" for path, message in found]


def of_dns(**entry: object) -> list[str]:
    return [each.removeprefix("discovery.dns[0]") for each in findings(dns=[entry])]


@pytest.mark.parametrize(
    "root",
    [
        {"backends": [{}]},
        {"discovery": {"files": ["f"]}},
        {"discovery": {"dns": [{}]}, "backends": []},
    ],
)
def test_backends_may_come_from_anywhere(root: dict[str, object]) -> None:
    assert list(check_any_source(root)) == []


def test_they_have_to_come_from_somewhere() -> None:
    assert list(check_any_source({})) == [(("backends",), "is required")]
    root: dict[str, object] = {"backends": [], "discovery": {"files": []}}
    assert list(check_any_source(root)) == [(("backends",), "at least one is needed")]


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


@pytest.mark.parametrize("discovery", [7, {"dns": 7, "files": 7}, {"dns": [7]}])
def test_what_cannot_be_read_is_left_to_the_models(discovery: object) -> None:
    found = list(check_discovery({"discovery": discovery}))
    assert all(path == ("discovery", "dns", 0) for path, _ in found)


def test_values_that_cannot_be_read_are_passed_over() -> None:
    assert of_dns(**HOST, servers=["?"], refresh_min="x", backend=7) == []
