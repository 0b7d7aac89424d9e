"""Rules between settings, inside of sections and between them, in a configuration as a whole."""

from __future__ import annotations

import pytest

from lb.domain.backend import Address, parse_address
from lb.settings.listening import is_loopback, overlap
from lb.settings.problems import Problem, SettingsError
from lb.settings.reading import build_settings
from lb.settings.tree import Tree

USUAL: dict[str, object] = {"listen": {"http": "127.0.0.1:1"}, "backends": [{"http": "usual:1"}]}
SECRET = "0123456789abcdef"


def problems(root: dict[str, object]) -> tuple[Problem, ...]:
    tree = Tree()
    tree.root = {**USUAL, **root}
    try:
        build_settings(tree)
    except SettingsError as error:
        return error.problems
    return ()


def findings(root: dict[str, object]) -> list[str]:
    return [problem.path for problem in problems(root)]


def told(root: dict[str, object]) -> list[str]:
    return [str(problem) for problem in problems(root)]


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
    if not other.endswith(":0"):
        assert findings({"listen": {"http": http}, "backends": [{"http": other}]}) == []


@pytest.mark.parametrize("port", ["http", "grpc", "metrics"])
@pytest.mark.parametrize("listener", ["http", "grpc", "metrics", "admin"])
def test_no_backend_may_be_one_of_our_listeners(listener: str, port: str) -> None:
    root: dict[str, object] = {
        "listen": {"http": "127.0.0.1:1", listener: "0.0.0.0:8000"},
        "backends": [{"http": "b:1"}, {"http": "c:1", port: "localhost:8000"}],
        "admin": {"insecure": True},
    }
    assert findings(root) == [f"backends[1].{port}"]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"head_bytes": "8KiB", "request_line_bytes": "8KiB"}, []),
        ({"head_bytes": "8KiB", "request_line_bytes": 8193}, ["limits.head_bytes"]),
        ({"stream_window_max_bytes": "64KiB"}, ["limits.stream_window_max_bytes"]),
        ({"memory_bytes": 0}, []),
        ({"memory_bytes": "3MiB"}, ["limits.memory_bytes"]),
        ({"memory_bytes": "3MB"}, ["limits.memory_bytes"]),
    ],
)
def test_smaller_bounds_fit_into_larger_ones(limits: dict[str, object], found: list[str]) -> None:
    assert findings({"limits": limits}) == found


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ({}, []),
        ({"listen": 5, "backends": 5, "limits": 5}, ["listen", "backends", "limits"]),
        (
            {"listen": {"http": 5, "grpc": {"address": []}}, "backends": [{"http": 5}]},
            ["listen.http", "listen.grpc.address", "backends[0].http"],
        ),
        ({"backends": [{"name": 5, "http": "a:1"}, {"name": 5, "http": "a:1"}]}, 2),
        ({"backends": [None, "x"]}, ["backends[0]", "backends[1]"]),
        ({"backends": [], "discovery": {"dns": 7}}, ["discovery.dns"]),
        ({"access": {"tokens": 7}, "scheduling": {"tenants": "token"}}, ["access.tokens"]),
        ({"access": 7, "listen": {"http": "a:1", "admin": "0.0.0.0:2"}}, ["access"]),
    ],
)
def test_what_cannot_be_read_breaks_no_rule(root: dict[str, object], found: object) -> None:
    paths = findings(root)
    assert (sorted(set(paths)) == sorted(found)) if isinstance(found, list) else len(paths) > 1


def test_rules_are_told_beside_values_that_cannot_be_read() -> None:
    root: dict[str, object] = {
        "listen": {"http": "a:1", "metrics": "a:1", "admin": 5},
        "backends": [{"http": "a:1", "weight": -1}, {"name": "a"}],
        "limits": {"head_bytes": "4KiB", "max_headers": 1},
        "access": {"limits": [{"by": "address", "burst": 5, "requests_per_second": -1}]},
    }
    assert set(findings(root)) == {
        "listen.metrics", "listen.admin", "backends[0].weight", "backends[0].http", "backends[1]",
        "limits.head_bytes", "limits.max_headers", "access.limits[0].requests_per_second",
        "access.limits[0].burst",
    }  # fmt: skip


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
        ({"http": "a:1", "tls": {"certificate": "c"}}, ["backends[0].tls.certificate"]),
        ({"http": "a:1", "tls": {"key": "k"}}, ["backends[0].tls.key"]),
        ({"http": "unix:/a", "tls": {"ca": "c"}}, ["backends[0].tls"]),
        ({"http": "unix:/a", "tls": {"server_name": "c"}}, []),
        ({"http": "unix:/a", "grpc": "b:1", "tls": {"ports": ["grpc"]}}, []),
    ],
)
def test_tls_toward_backends_fits(backend: dict[str, object], found: list[str]) -> None:
    assert findings({"backends": [backend]}) == found


@pytest.mark.parametrize("header", ["Host", "content-length", "te", "Traceparent"])
def test_a_header_of_the_relay_cannot_hold_tokens(header: str) -> None:
    assert findings({"access": {"header": header}}) == ["access.header"]


GOOD = {"name": "a", "token": SECRET}


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([GOOD], []),
        ([GOOD, {"name": "b"}], ["access.tokens[1]"]),
        ([{"name": "c", "token": SECRET, "file": "/f"}], ["access.tokens[0]"]),
        ([GOOD, {**GOOD, "token": SECRET[::-1]}], ["access.tokens[1].name"]),
    ],
)
def test_a_token_has_a_name_and_is_given_in_one_way(tokens: list[object], found: object) -> None:
    assert findings({"access": {"tokens": tokens}}) == found


def test_messages_hold_no_token() -> None:
    bad = {"name": "a", "token": SECRET, "token_sha256": SECRET}
    assert not any(SECRET in text for text in told({"access": {"tokens": [bad, bad]}}))


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ({"by": "address", "requests_per_second": 1}, []),
        ({"by": "address", "max_concurrent_requests": 1}, []),
        ({"by": "address"}, ["access.limits[0]"]),
        ({"by": "address", "burst": 5, "max_concurrent_requests": 1}, ["access.limits[0].burst"]),
        ({"by": "token", "max_concurrent_requests": 1}, ["access.limits[0].by"]),
        ({"by": "header:Traceparent", "requests_per_second": 1}, ["access.limits[0].by"]),
    ],
)
def test_a_limit_limits_something(limit: dict[str, object], found: list[str]) -> None:
    assert findings({"access": {"limits": [limit]}}) == found


@pytest.mark.parametrize(("roles", "works"), [([], True), (["control"], True), (["read"], False)])
def test_clients_are_told_apart_by_tokens_of_clients_only(roles: list[str], works: bool) -> None:
    token = {**GOOD, "roles": roles} if roles else GOOD
    limit = {"by": "token", "max_concurrent_requests": 1}
    limited = {"access": {"tokens": [token], "limits": [limit]}}
    assert findings(limited) == ([] if works else ["access.limits[0].by"])
    fair = {"access": {"tokens": [token]}, "scheduling": {"tenants": "token"}}
    assert findings(fair) == ([] if works else ["scheduling.tenants"])


def test_tenants_by_token_need_tokens() -> None:
    assert findings({"scheduling": {"tenants": "token"}}) == ["scheduling.tenants"]
    assert findings({"scheduling": {"tenants": "header"}}) == []


@pytest.mark.parametrize(
    "text", ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "localhost:5", "unix:/a"]
)
def test_an_admin_api_for_this_machine_needs_no_token(text: str) -> None:
    assert is_loopback(parse_address(text))
    assert findings({"listen": {"http": "a:1", "admin": text}}) == []


@pytest.mark.parametrize("text", ["0.0.0.0:5", "[::]:5", "10.0.0.1:5", "example.com:5"])
def test_an_admin_api_for_others_needs_tokens_or_a_word(text: str) -> None:
    root: dict[str, object] = {"listen": {"http": "a:1", "admin": text}}
    assert findings(root) == ["listen.admin"]
    for role, found in (("infer", ["listen.admin"]), ("read", []), ("operate", [])):
        assert findings({**root, "access": {"tokens": [{**GOOD, "roles": [role]}]}}) == found
    assert findings({**root, "admin": {"insecure": True}}) == []


def test_two_backends_cannot_have_one_name() -> None:
    assert told({"backends": [{"http": "a:1"}, {"name": "a:1", "grpc": "b:1"}]}) == [
        "backends[1].name: 'a:1' is already the name of backends[0]"
    ]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (Address("0.0.0.0", 1), Address("127.0.0.1", 1), True),
        (Address("0.0.0.0", 1), Address("127.0.0.2", 1), True),
        (Address("::", 1), Address("::1", 1), True),
        (Address("0.0.0.0", 1), Address("10.0.0.1", 1), False),
        (Address("0.0.0.0", 1), Address("triton", 1), False),
        (Address("127.0.0.1", 1), Address("127.0.0.1", 2), False),
        (Address(path="/a"), Address(path="/a"), True),
    ],
)
def test_addresses_overlap_where_one_would_take_what_is_for_the_other(
    one: Address, other: Address, is_same: bool
) -> None:
    assert overlap(one, other) is is_same


@pytest.mark.parametrize(
    "root",
    [
        {"backends": [{"http": "b:1"}]},
        {"discovery": {"files": ["f"]}},
        {"discovery": {"dns": [{"host": "a", "http_port": 1}]}, "backends": []},
    ],
)
def test_backends_may_come_from_anywhere(root: dict[str, object]) -> None:
    assert findings({"backends": [], **root}) == []


def test_they_have_to_come_from_somewhere() -> None:
    assert told({"backends": [], "discovery": {"files": []}}) == [
        "backends: at least one is needed"
    ]


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ({"workers": 1}, []),
        ({"workers": "auto"}, []),
        ({"workers": 64}, []),
        ({"workers": 0}, ["workers"]),
        ({"workers": 65}, ["workers"]),
        ({"workers": "all"}, ["workers"]),
        ({"workers": 2, "payload_log": {"path": "/p"}}, ["payload_log.path"]),
        ({"workers": "auto", "payload_log": {"path": "/p"}}, ["payload_log.path"]),
        ({"workers": 1, "payload_log": {"path": "/p"}}, []),
        (
            {"workers": 2, "fronts": {"sagemaker": {"enabled": True, "multi_model": True}}},
            ["fronts.sagemaker.multi_model"],
        ),
        ({"workers": 2, "fronts": {"sagemaker": {"multi_model": True}}}, []),
        ({"workers": 2, "fronts": {"sagemaker": {"enabled": True}}}, []),
        ({"workers": 2, "placement": {"mode": "observe", "max_models": 1}}, ["placement.mode"]),
    ],
)
def test_several_workers_are_not_asked_for_what_one_process_does(
    root: dict[str, object], found: list[str]
) -> None:
    assert findings(root) == found
