"""Settings of access: what is read, and that no secret gets out of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.domain.access import Role
from lb.settings.access import (
    AccessSettings,
    AdminSettings,
    ClientLimitSettings,
    ControlSettings,
    TokenSettings,
    is_token,
)
from lb.settings.model import Settings
from lb.settings.problems import SettingsError
from lb.settings.reading import read_settings

SECRET = "0123456789abcdefSECRET"
DIGEST = "ab" * 32

LIMIT = {"max_concurrent_requests": 1}
TOKEN = {"token": "0123456789abcdef"}
"""What makes a limit, and a token, complete."""


def read(access: str) -> Settings:
    text = f"listen: {{http: 127.0.0.1:0}}\nbackends: [{{http: a:1}}]\naccess: {access}\n"
    return read_settings(text, {"TOKEN": SECRET}, lambda _path: SECRET + "\n")


def complaints(access: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(access)
    return str(caught.value)


def test_by_default_nothing_is_asked_but_where_control_comes_from() -> None:
    assert AccessSettings().model_dump() == {
        "header": "authorization",
        "pass_on": False,
        "open_health": True,
        "tokens": (),
        "control": {"loopback": True, "networks": ()},
        "cors_origins": (),
        "strict_shared_memory": False,
        "limits": (),
    }
    assert AdminSettings().model_dump() == {"hosts": (), "insecure": False, "replicas": ()}


@pytest.mark.parametrize("text", [SECRET, "${TOKEN}", "${file:/f}"])
def test_a_token_may_come_from_the_environment_or_a_file(text: str) -> None:
    [token] = read(f"{{tokens: [{{name: a, token: '{text}'}}]}}").access.tokens
    assert token.token is not None
    assert token.token.get_secret_value() == SECRET
    assert token.roles == (Role.INFER,)


@pytest.mark.parametrize(
    "origin", ["*", "null", "https://a.example/", "https://A.example", "a.example", "ftp://a"]
)
def test_origins_are_exact(origin: str) -> None:
    assert read("{cors_origins: ['https://a.example', 'http://127.0.0.1:8080']}").access
    with pytest.raises(SettingsError, match="expected https://HOST"):
        read(f"{{cors_origins: ['{origin}']}}")


def test_settings_show_no_secret() -> None:
    settings = read(
        f"{{tokens: [{{name: a, token: {SECRET}}}, {{name: b, token_sha256: {DIGEST}}}]}}"
    )
    for text in (
        repr(settings),
        str(settings),
        repr(settings.model_dump()),
        settings.model_dump_json(),
    ):
        assert SECRET not in text
        assert DIGEST not in text


@pytest.mark.parametrize(
    "access",
    [
        "{tokens: [{name: a, token: SECRET}]}",
        "{tokens: [{name: a, token: 'SECRET with spaces in it'}]}",
        "{tokens: [{name: a, token: [SECRET]}]}",
        "{tokens: [{name: a, token: {x: SECRET}}]}",
        "{tokens: [{name: a, token_sha256: SECRET}]}",
        "{tokens: [{name: 'SECRET SECRET', token: 5}]}",
        "{tokens: [{name: a, token: 1234567890123456}]}",
        "{tokens: [{name: a, token: 123456.7890123456}]}",
        "{tokens: [SECRET]}",
        "{tokens: SECRET}",
        "{tokens: {SECRET}}",
        "{tokens: [{name: a, token: 'SECRETSECRETSECRET', roles: [SECRET]}]}",
        "{tokens: [{name: a, token: SECRETSECRETSECRET, token_sha256: SECRET}]}",
        "{tokens: [{name: a, file: [SECRET]}]}",
    ],
)
def test_complaints_show_no_secret(access: str) -> None:
    text = complaints(access)
    assert "access.tokens" in text
    assert not any(secret in text for secret in ("SECRET", "12345"))


@pytest.mark.parametrize(
    "text", ["", "short", "0123456789abcde", "x" * 513, "x" * 20 + " ", "ä" * 20]
)
def test_what_is_too_short_or_unprintable_is_no_token(text: str) -> None:
    assert not is_token(text)


@pytest.mark.parametrize(
    ("values", "header", "depth"),
    [
        ({"by": "address", "requests_per_second": 10}, "", 10),
        ({"by": "address", "requests_per_second": 0.5}, "", 1),
        ({"by": "token", "requests_per_second": 2.5, "burst": 9}, "", 9),
        ({"by": "header:X-Tenant", "max_concurrent_requests": 1}, "x-tenant", 1),
    ],
)
def test_a_limit_says_what_a_client_is(values: dict[str, Any], header: str, depth: int) -> None:
    limit = ClientLimitSettings.model_validate(values)
    assert (limit.header, limit.depth) == (header, depth)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (ClientLimitSettings, {"by": "cookie", **LIMIT}),
        (ClientLimitSettings, {"by": "header:", **LIMIT}),
        (ClientLimitSettings, {"by": "header:a b", **LIMIT}),
        (ClientLimitSettings, {"by": "address", "requests_per_second": -1, **LIMIT}),
        (ClientLimitSettings, {"by": "address", "max_concurrent_requests": True}),
        (ControlSettings, {"networks": ["10.0.0.1/8"]}),
        (TokenSettings, {"name": "a b", **TOKEN}),
        (TokenSettings, {"name": "", **TOKEN}),
        (TokenSettings, {"name": "a", "roles": [], **TOKEN}),
        (TokenSettings, {"name": "a", "roles": ["root"], **TOKEN}),
        (AdminSettings, {"hosts": ["a b"]}),
        (AdminSettings, {"replicas": ["https://lb-1:8003"]}),
        (AdminSettings, {"replicas": ["http://lb-1"]}),
        (AdminSettings, {"replicas": ["http://lb-1:0"]}),
        (AdminSettings, {"replicas": ["http://lb-1:8003/<script>"]}),
        (AccessSettings, {"header": ":path"}),
    ],
)
def test_nonsense_is_refused(section: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(values)
