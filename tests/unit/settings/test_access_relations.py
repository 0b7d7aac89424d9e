"""Rules between settings of access: tokens, limits, and an admin API that is not open."""

from __future__ import annotations

import pytest

from lb.domain.backend import parse_address
from lb.settings.access_relations import (
    check_admin,
    check_client_limits,
    check_tenants,
    check_tokens,
    is_loopback,
)

SECRET = "0123456789abcdef"


def at(findings: object) -> list[str]:
    assert hasattr(findings, "__iter__")
    return [".".join(map(str, path)) for path, _ in findings]


def test_a_token_is_given_in_exactly_one_way() -> None:
    good = {"name": "a", "token": SECRET}
    none = {"name": "b"}
    two = {"name": "c", "token": SECRET, "file": "/f"}
    assert at(check_tokens([good, none, two])) == ["access.tokens.1", "access.tokens.2"]


def test_two_tokens_cannot_have_one_name() -> None:
    token = {"name": "a", "token": SECRET}
    assert at(check_tokens([token, token])) == ["access.tokens.1.name"]


def test_messages_hold_no_token() -> None:
    bad = {"name": "a", "token": SECRET, "token_sha256": SECRET}
    assert not any(SECRET in message for _, message in check_tokens([bad, bad]))


@pytest.mark.parametrize(
    ("limit", "paths"),
    [
        ({"by": "address", "requests_per_second": 1}, []),
        ({"by": "address", "max_concurrent_requests": 1}, []),
        ({"by": "address"}, ["access.limits.0"]),
        ({"by": "address", "burst": 5, "max_concurrent_requests": 1}, ["access.limits.0.burst"]),
        ({"by": "token", "max_concurrent_requests": 1}, ["access.limits.0.by"]),
    ],
)
def test_a_limit_limits_something(limit: dict[str, object], paths: list[str]) -> None:
    assert at(check_client_limits([limit], [])) == paths


@pytest.mark.parametrize(
    ("roles", "works"), [(None, True), (["control"], True), (["read"], False), ("infer", False)]
)
def test_a_limit_by_token_needs_tokens_of_clients(roles: object, works: bool) -> None:
    token = {"name": "a"} if roles is None else {"name": "a", "roles": roles}
    found = at(check_client_limits([{"by": "token", "max_concurrent_requests": 1}], [token]))
    assert found == ([] if works else ["access.limits.0.by"])


def test_tenants_by_token_need_tokens_of_clients() -> None:
    by_token = {"tenants": "token"}
    assert at(check_tenants(by_token, [])) == ["scheduling.tenants"]
    assert at(check_tenants(by_token, [{"name": "a", "roles": ["read"]}])) == ["scheduling.tenants"]
    assert at(check_tenants(by_token, [{"name": "a"}])) == []
    assert at(check_tenants({"tenants": "header"}, [])) == []


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/a"]
)
def test_addresses_of_this_machine_alone(text: str) -> None:
    assert is_loopback(parse_address(text))
    assert at(check_admin({}, parse_address(text), [])) == []


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"])
def test_an_admin_api_for_others_needs_tokens_or_a_word(text: str) -> None:
    address = parse_address(text)
    assert at(check_admin({}, address, [])) == ["listen.admin"]
    assert at(check_admin({}, address, [{"name": "a", "roles": ["infer"]}])) == ["listen.admin"]
    assert at(check_admin({}, address, [{"name": "a", "roles": ["read"]}])) == []
    assert at(check_admin({"insecure": True}, address, [])) == []
    assert at(check_admin({}, None, [])) == []
