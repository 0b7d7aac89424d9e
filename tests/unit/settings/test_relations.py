"""Rules between settings: who shares an address with whom, and which bound contains which."""

from __future__ import annotations

import pytest

from lb.settings.relations import check_relations


def findings(root: dict[str, object]) -> list[str]:
    return [".".join(map(str, path)) for path, _ in check_relations(root)]


@pytest.mark.parametrize(
    ("http", "other"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("0.0.0.0:8000", "127.0.0.1:8000"),
        ("127.0.0.1:8000", "0.0.0.0:8000"),
        ("[::]:8000", "[::1]:8000"),
        ("localhost:8000", "127.0.0.1:8000"),
        ("unix:/run/a", "unix:/run/a"),
    ],
)
def test_listeners_that_take_the_same_address_are_found(http: str, other: str) -> None:
    assert findings({"listen": {"http": http, "metrics": {"address": other}}}) == ["listen.metrics"]
    if http != other:
        assert findings({"listen": {"http": http, "grpc": other}}) == ["listen.grpc"]


@pytest.mark.parametrize(
    ("http", "other"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8001"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("0.0.0.0:8000", "10.0.0.1:8000"),
        ("127.0.0.1:8000", "[::1]:8000"),
        ("unix:/run/a", "unix:/run/b"),
        ("unix:/run/a", "127.0.0.1:8000"),
    ],
)
def test_listeners_and_backends_at_different_addresses_are_fine(http: str, other: str) -> None:
    assert findings({"listen": {"http": http, "metrics": other}}) == []
    assert findings({"listen": {"http": http}, "backends": [{"http": other}]}) == []


@pytest.mark.parametrize("port", ["http", "grpc", "metrics"])
@pytest.mark.parametrize("listener", ["http", "grpc", "metrics", "admin"])
def test_no_backend_may_be_one_of_our_listeners(listener: str, port: str) -> None:
    root: dict[str, object] = {
        "listen": {"http": "127.0.0.1:1", listener: "0.0.0.0:8000"},
        "backends": [{"http": "b:1"}, {"http": "c:1", port: "localhost:8000"}],
        "admin": {"insecure": True},
    }
    assert findings(root) == [f"backends.1.{port}"]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"head_bytes": "8KiB", "request_line_bytes": "8KiB"}, []),
        ({"head_bytes": "8KiB", "request_line_bytes": 8193}, ["limits.head_bytes"]),
        ({"stream_window_max_bytes": "64KiB"}, ["limits.stream_window_max_bytes"]),
        ({"memory_bytes": 0}, []),
        ({"memory_bytes": "3MiB"}, ["limits.memory_bytes"]),
        ({"memory_bytes": "3MB"}, []),
    ],
)
def test_smaller_bounds_fit_into_larger_ones(limits: dict[str, object], found: list[str]) -> None:
    assert findings({"limits": limits}) == found


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ({}, []),
        ({"listen": 5, "backends": 5, "limits": 5}, []),
        ({"listen": {"http": 5, "grpc": {"address": []}}, "backends": [{"http": 5}]}, []),
        ({"backends": [{"name": 5, "http": "a:1"}, {"name": 5, "http": "b:1"}]}, []),
        ({"backends": [None, "x"]}, ["backends.0", "backends.1"]),
    ],
)
def test_values_of_the_wrong_type_break_no_rule(root: dict[str, object], found: list[str]) -> None:
    assert findings(root) == found


TLS = {"certificates": [{"certificate": "c", "key": "k"}]}


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ({"https": "a:1"}, ["listen.https"]),
        ({"https": {"address": "a:1", "tls": TLS}}, []),
        ({"https": {"address": "a:1", "tls": TLS}, "grpcs": "a:1"}, []),
        ({"https": "a:1", "grpcs": {"address": "a:1", "tls": TLS}}, []),
        ({"https": {"address": "a:1", "tls": TLS}, "grpcs": "a:2"}, ["listen.grpcs"]),
        ({"http": "a:1", "https": {"address": "a:1", "tls": TLS}}, ["listen.https"]),
        (
            {
                "http": {"address": "a:1", "tls": TLS},
                "grpc": {"address": "a:1", "tls": {**TLS, "client_ca": "x"}},
            },
            ["listen.grpc.tls"],
        ),
        (
            {"http": {"address": "a:1", "tls": {**TLS, "subject_header": "x"}}},
            ["listen.http.tls.subject_header"],
        ),
        (
            {
                "http": {
                    "address": "a:1",
                    "tls": {**TLS, "client_ca": "f", "subject_header": "Host"},
                }
            },
            ["listen.http.tls.subject_header"],
        ),
        (
            {"http": {"address": "a:1", "tls": {**TLS, "client_ca": "f", "subject_header": "x"}}},
            [],
        ),
        ({"http": {"address": "a:1", "proxy_protocol": True}}, ["listen.http.proxy_protocol"]),
        (
            {
                "http": {"address": "a:1", "proxy_protocol": True},
                "trusted_proxies": ["10.0.0.0/8"],
            },
            [],
        ),
    ],
)
def test_tls_of_listeners_fits(listen: dict[str, object], found: list[str]) -> None:
    assert findings({"listen": listen}) == found


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        ({"http": "a:1", "tls": {}}, []),
        ({"http": "a:1", "tls": {"certificate": "c", "key": "k"}}, []),
        ({"http": "a:1", "tls": {"certificate": "c"}}, ["backends.0.tls.certificate"]),
        ({"http": "a:1", "tls": {"key": "k"}}, ["backends.0.tls.key"]),
        ({"http": "unix:/a", "tls": {"ca": "c"}}, ["backends.0.tls"]),
        ({"http": "unix:/a", "tls": {"server_name": "c"}}, []),
        ({"http": "unix:/a", "grpc": "b:1", "tls": {"ports": ["grpc"]}}, []),
    ],
)
def test_tls_toward_backends_fits(backend: dict[str, object], found: list[str]) -> None:
    assert findings({"listen": {"http": "l:1"}, "backends": [backend]}) == found


@pytest.mark.parametrize("header", ["Host", "content-length", "te"])
def test_a_header_of_the_relay_cannot_hold_tokens(header: str) -> None:
    assert findings({"access": {"header": header}}) == ["access.header"]
