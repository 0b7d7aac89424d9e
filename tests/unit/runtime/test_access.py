"""Access as the settings ask for it, and tokens that follow their files."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from lb.access.tokens import digest_of
from lb.domain.access import Role
from lb.domain.client import NOBODY, Client
from lb.domain.errors import RequestRefused
from lb.runtime.access import TokenFileError, TokenKeeper, make_access
from lb.settings.access import TokenSettings
from lb.settings.model import Settings
from tests.fakes.records import INFER

ONE, TWO, THREE = (f"{number}123456789abcdef" for number in "abc")


def settings(access: dict[str, Any], **more: Any) -> Settings:
    usual = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "a:1"}], "access": access}
    return Settings.model_validate(usual | more)


def keeper(*tokens: dict[str, Any]) -> TokenKeeper:
    return TokenKeeper([TokenSettings.model_validate(token) for token in tokens])


def names(tokens: TokenKeeper, *secrets: str) -> list[str | None]:
    found = [tokens.book.find(digest_of(secret.encode())) for secret in secrets]
    return [token.name if token is not None else None for token in found]


def test_tokens_come_from_the_settings_and_from_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TWO}\r\n\n{THREE}\n")
    tokens = keeper(
        {"name": "a", "token": ONE, "roles": ["control"]},
        {"name": "b", "token_sha256": digest_of(b"other").hex().upper()},
        {"name": "c", "file": str(path)},
    )
    assert names(tokens, ONE, TWO, THREE, "other", "") == ["a", "c", "c", "b", None]
    assert tokens.files == (str(path),)
    [first, *_] = tokens.book.tokens
    assert first.roles == {Role.CONTROL}


@pytest.mark.parametrize(
    "content", [None, b"", b"\n\n", b"short\n", b"\xff\xfe", b"a b c d e f g h i j k l"]
)
def test_a_file_without_tokens_stops_the_start_and_is_not_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TokenFileError) as caught:
        keeper({"name": "a", "file": str(path)})
    assert str(path) in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_changed_file_is_used_once_it_holds_still(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "token"
    path.write_text(ONE)
    tokens = keeper({"name": "a", "file": str(path)})
    tokens.poll()()
    tokens.poll()()
    assert tokens.book.generation == 0
    path.write_text(TWO)
    tokens.poll()()
    assert names(tokens, ONE, TWO) == ["a", None]
    tokens.poll()()
    assert names(tokens, ONE, TWO) == [None, "a"]
    tokens.poll()()
    assert [record.message for record in caplog.records] == ["tokens reloaded"]
    assert not any(secret in caplog.text for secret in (ONE, TWO))


def test_an_unfit_file_leaves_all_as_it_was_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text(ONE)
    tokens = keeper({"name": "a", "file": str(path)})
    path.unlink()
    for _ in range(5):
        tokens.poll()()
    assert (names(tokens, ONE), tokens.failures) == (["a"], 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    path.write_text(TWO)
    for _ in range(2):
        tokens.poll()()
    assert names(tokens, ONE, TWO) == [None, "a"]


@pytest.mark.parametrize(
    ("roles", "asks", "dropped", "admin_asks"),
    [
        (["infer"], True, True, False),
        (["control"], False, True, False),
        (["read"], False, False, True),
        (["infer", "operate"], True, True, True),
    ],
)
def test_roles_decide_what_asks_for_tokens(
    roles: list[str], asks: bool, dropped: bool, admin_asks: bool
) -> None:
    given = settings({"tokens": [{"name": "a", "token": ONE, "roles": roles}]})
    access = make_access(given)
    credentials = access.gate.credentials(INFER, (), is_control=False)
    assert (credentials is not None) == asks
    assert given.private_fields == ({b"authorization"} if dropped else set())
    assert (access.admin_rules.tokens is not None) == admin_asks


def test_the_header_of_tokens_is_passed_on_only_when_told() -> None:
    access = {"tokens": [{"name": "a", "token": ONE}], "header": "X_Api-Key"}
    assert settings(access).private_fields == {b"x-api-key"}
    assert settings({**access, "pass_on": True}).private_fields == set()


def test_limits_are_made_as_told() -> None:
    given = settings({"limits": [{"by": "header:X-Tenant", "requests_per_second": 2, "burst": 5}]})
    gate = make_access(given).gate
    assert gate.noted == {b"x-tenant"}
    credentials = gate.credentials(INFER, [(b"x-tenant", b"a")], is_control=False)
    assert credentials is not None
    for _ in range(5):
        gate.admit(credentials, None, NOBODY, 0.0)
    with pytest.raises(RequestRefused):
        gate.admit(credentials, None, NOBODY, 0.0)


def test_trusted_proxies_tell_who_the_client_is() -> None:
    listen = {"http": "127.0.0.1:0", "trusted_proxies": ["127.0.0.1"]}
    access = {"control": {"networks": ["192.0.2.0/24"]}}
    gate = make_access(settings(access, listen=listen)).gate
    assert gate.noted == {b"x-forwarded-for"}
    address = ip_address("127.0.0.1")
    proxy = Client("x", address, address, True, False, True)
    for hops, passes in ((b"192.0.2.1", True), (b"198.51.100.1", False)):
        credentials = gate.credentials(INFER, [(b"x-forwarded-for", hops)], is_control=True)
        assert credentials is not None
        if passes:
            gate.admit(credentials, None, proxy, 0.0)
            continue
        with pytest.raises(RequestRefused):
            gate.admit(credentials, None, proxy, 0.0)


def test_a_file_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(("t" * 64 + "\n") * 1100)
    settings = TokenSettings(name="all", file=str(file))
    with pytest.raises(TokenFileError, match="longer than 65536 characters"):
        TokenKeeper((settings,))
