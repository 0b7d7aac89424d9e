"""TLS toward backends: names, agreement, sharing, reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.domain.backend import Address, AppProtocol, BackendTls
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.tls.client import ClientTls, ClientTlsBook
from lb.net.tls.contexts import TlsError
from tests.fakes.certificates import Authority
from tests.fakes.tls import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_name_is_the_host_unless_another_is_given() -> None:
    address = Address("gpu-0", 8001)
    assert ClientTls(BackendTls(), AppProtocol.GRPC).server_name(address) == "gpu-0"
    named = ClientTls(BackendTls(server_name="triton"), AppProtocol.GRPC)
    assert named.server_name(address) == "triton"


def test_grpc_needs_h2_and_http_does_without() -> None:
    grpc, http = (ClientTls(BackendTls(), p) for p in (AppProtocol.GRPC, AppProtocol.HTTP))
    assert [grpc.has_agreed(p) for p in ("h2", "http/1.1", None)] == [True, False, False]
    assert [http.has_agreed(p) for p in ("h2", "http/1.1", None)] == [False, True, True]


def test_without_an_authority_those_of_the_system_count() -> None:
    tls = ClientTls(BackendTls(), AppProtocol.HTTP)
    assert tls.files == ()
    assert tls.expiries == ()


def test_a_reload_forgets_sessions_and_a_bad_one_changes_nothing(world: World) -> None:
    own, key = world.client_pair()
    tls = ClientTls(BackendTls(ca=world.ca, certificate=own, key=key), AppProtocol.GRPC)
    assert tls.files == (world.ca, own, key)
    assert [file for file, _ in tls.expiries] == [own]
    before, sessions = tls.context, tls.sessions
    Path(key).write_bytes(b"half")
    with pytest.raises(TlsError):
        tls.load()
    assert tls.context is before
    assert tls.sessions is sessions
    world.client_pair()
    Authority("New CA").write(world.folder)
    tls.load()
    assert tls.context is not before
    assert tls.sessions is not sessions


def test_equal_settings_share_one(world: World) -> None:
    book = ClientTlsBook()
    settings = BackendTls(ca=world.ca)
    one = book.load(settings, AppProtocol.GRPC)
    assert book.find(BackendTls(ca=world.ca), AppProtocol.GRPC) is one
    assert book.find(settings, AppProtocol.HTTP) is not one
    assert book.find(None, AppProtocol.HTTP) is None
    assert len(list(book)) == 2


def test_what_cannot_be_loaded_is_a_failure_to_connect() -> None:
    with pytest.raises(UpstreamError, match="cannot read /nowhere") as caught:
        ClientTlsBook().find(BackendTls(ca="/nowhere"), AppProtocol.HTTP)
    assert caught.value.outcome is Outcome.CONNECT_FAILED
