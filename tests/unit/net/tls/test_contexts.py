"""Contexts: what they speak, and what is said of files that do not do."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from lb.net.tls.contexts import (
    TlsError,
    describe,
    load_pair,
    make_client_context,
    make_server_context,
    read_leaf,
    trust,
)
from tests.fakes.tls import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_contexts_speak_good_versions_and_ciphers_only() -> None:
    for context in (make_server_context(["h2"]), make_client_context(["h2"])):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.options & ssl.OP_NO_RENEGOTIATION
        for cipher in context.get_ciphers():
            assert cipher["protocol"] == "TLSv1.3" or cipher["kea"] == "kx-ecdhe"
            assert cipher["aead"]


def test_backends_are_always_verified_by_name() -> None:
    context = make_client_context(["h2"])
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_missing_and_bad_files_are_named(world: World) -> None:
    certificate, key = world.server
    other = world.pair("other", "other")[1]
    empty = world.folder / "empty"
    empty.write_bytes(b"")
    locked = world.folder / "locked.key"
    secret = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    locked.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    cases = {
        (certificate, "/nowhere"): "cannot read /nowhere: No such file or directory",
        ("/nowhere", key): "cannot read /nowhere: No such file or directory",
        (certificate, other): f"{other} is not the key of {certificate}",
        (certificate, str(empty)): f"cannot use {certificate} with {empty}: ",
        (str(empty), key): f"cannot use {empty} with {key}: ",
        (certificate, str(locked)): f"cannot use {certificate} with {locked}: the key is encrypted",
    }
    for pair, text in cases.items():
        with pytest.raises(TlsError) as caught:
            load_pair(make_server_context(["h2"]), *pair)
        assert str(caught.value).startswith(text)
        assert "BEGIN" not in str(caught.value)
    with pytest.raises(TlsError, match="holds no certificates of authorities"):
        trust(make_client_context(["h2"]), str(empty))
    with pytest.raises(TlsError, match="holds no certificate"):
        read_leaf(str(empty))


def test_a_certificate_that_is_damaged_is_named(world: World) -> None:
    damaged = world.folder / "damaged.crt"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(TlsError, match=r"damaged\.crt cannot be read"):
        read_leaf(str(damaged))


def test_the_first_certificate_of_a_file_is_the_leaf(world: World) -> None:
    chain = world.folder / "chain.crt"
    chain.write_bytes(Path(world.server[0]).read_bytes() + world.authority.pem)
    assert read_leaf(str(chain)).names == ("localhost",)


def test_errors_are_told_in_words() -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1)")
    assert "wrong version number" in describe(error)
