"""TLS from settings: files, modes, protocols, private headers."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.net.tls.contexts import TlsError
from lb.runtime.security import make_security
from lb.settings.model import Settings
from tests.fakes.tls import World, poll


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tls_of(world: World, **more: Any) -> dict[str, Any]:
    certificate, key = world.server
    return {"certificates": [{"certificate": certificate, "key": key}], **more}


def settings(listen: dict[str, Any], **backend: Any) -> Settings:
    return Settings.model_validate({"listen": listen, "backends": [{"http": "b:1", **backend}]})


def test_plain_settings_need_nothing() -> None:
    security = make_security(settings({"http": "a:1"}))
    assert not security.servers
    assert not list(security.clients)
    assert security.servers == {}
    assert settings({"http": "a:1"}).private_fields == frozenset()


def test_listeners_get_their_protocols_with_http1_first(world: World) -> None:
    shared = settings({"https": {"address": "a:1", "tls": tls_of(world)}, "grpcs": "a:1"})
    security = make_security(shared)
    assert security.servers or list(security.clients)
    assert security.servers["https"].protocols == (b"http/1.1", b"h2")
    assert [file for file, _ in security.watch.expiries()] == [world.server[0]]


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ({}, ssl.CERT_NONE),
        ({"client_certificates": "optional"}, ssl.CERT_NONE),
        ({"client_ca": True}, ssl.CERT_REQUIRED),
        ({"client_ca": True, "client_certificates": "optional"}, ssl.CERT_OPTIONAL),
    ],
)
def test_clients_are_asked_as_configured(
    world: World, more: dict[str, Any], mode: ssl.VerifyMode
) -> None:
    more = {key: world.ca if key == "client_ca" else value for key, value in more.items()}
    given = settings({"http": {"address": "a:1", "tls": tls_of(world, **more)}})
    assert make_security(given).servers["http"].context("").verify_mode is mode


def test_headers_of_all_listeners_are_private_everywhere(world: World) -> None:
    tls = tls_of(world, client_ca=world.ca, subject_header="X_Client-Subject")
    given = settings({"http": "a:1", "grpcs": {"address": "a:2", "tls": tls}})
    assert given.private_fields == {b"x-client-subject"}


def test_backends_are_loaded_at_the_start(world: World) -> None:
    security = make_security(settings({"http": "a:1"}, tls={"ca": world.ca}))
    assert security.servers or list(security.clients)
    assert {tls.protocol for tls in security.clients} == set(AppProtocol)
    with pytest.raises(TlsError, match="cannot read /nowhere"):
        make_security(settings({"http": "a:1"}, tls={"ca": "/nowhere"}))


def test_what_backends_need_that_come_later_is_loaded_and_watched_as_long_as_they_are_there(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = world.server
    security = make_security(settings({"http": "a:1"}))
    needs = {"ca": world.ca, "certificate": certificate, "key": key}
    later = settings({"http": "a:1"}, tls=needs).specs()
    security.follow(later)
    assert [file for file, _ in security.watch.expiries()] == [certificate]
    known = set(security.clients)
    security.follow(later)
    assert set(security.clients) == known
    assert len(known) == len(AppProtocol)
    security.follow(settings({"http": "a:1"}, tls={"ca": "/none"}).specs())
    assert "TLS of a backend cannot be used" in caplog.text
    assert not any(tls.is_loaded for tls in security.clients)
    assert list(security.watch.expiries()) == []


def test_what_cannot_be_loaded_is_tried_again_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    security = make_security(settings({"http": "a:1"}))
    late = world.folder / "late.pem"
    security.follow(settings({"http": "a:1"}, tls={"ca": str(late)}).specs())
    poll(security.watch)
    assert len(caplog.records) == len(AppProtocol)
    assert all(f"cannot read {late}" in str(tls.problem) for tls in security.clients)
    late.write_bytes(Path(world.ca).read_bytes())
    poll(security.watch)
    assert all(tls.is_loaded and tls.problem is None for tls in security.clients)
