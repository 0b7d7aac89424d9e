"""TLS toward backends: names, agreement, sharing, reload."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from lb.domain.backend import Address, AppProtocol, BackendTls
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.dial import dial
from lb.net.tls.client import ClientTls, ClientTlsBook
from lb.net.tls.contexts import TlsError
from tests.fakes.certificates import Authority
from tests.fakes.tls import World

ADDRESS = Address("127.0.0.1", 1)
"""Nobody listens there."""


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


def test_before_its_files_are_read_nobody_can_connect() -> None:
    tls = ClientTls(BackendTls(), AppProtocol.HTTP, later=True)
    assert not tls.is_loaded
    with pytest.raises(TlsError, match="certificates have not been read yet"):
        assert tls.context


def test_without_an_authority_those_of_the_system_count() -> None:
    tls = ClientTls(BackendTls(), AppProtocol.HTTP)
    assert tls.files == ()
    assert tls.expiries == ()


def test_a_reload_forgets_sessions_and_a_bad_one_changes_nothing(world: World) -> None:
    own, key = world.client_pair()
    tls = ClientTls(BackendTls(ca=world.ca, certificate=own, key=key), AppProtocol.GRPC)
    assert tls.files == (world.ca, own, key)
    assert [file for file, _ in tls.expiries] == [own]
    keep(tls, Connection())
    before, session = tls.context, tls.session_for(ADDRESS)
    assert session is not None
    Path(key).write_bytes(b"half")
    with pytest.raises(TlsError):
        tls.load()()
    assert tls.context is before
    assert tls.session_for(ADDRESS) is session
    world.client_pair()
    Authority("New CA").write(world.folder)
    tls.load()()
    assert tls.context is not before
    assert tls.session_for(ADDRESS) is None


class Connection:
    """One that ends: how often its session was read."""

    def __init__(self, *, session_reused: bool = False) -> None:
        self.session_reused = session_reused
        self.read = 0

    @property
    def session(self) -> object:
        self.read += 1
        return self


def keep(tls: ClientTls, connection: Connection) -> None:
    tls.keep_session(ADDRESS, cast("Any", connection))


def test_sessions_are_read_seldom(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs memory."""
    now = 1000.0
    monkeypatch.setattr("lb.net.tls.client.monotonic", lambda: now)
    tls = ClientTls(BackendTls(ca=world.ca), AppProtocol.HTTP)
    first = Connection()
    keep(tls, first)
    assert cast("Any", tls.session_for(ADDRESS)) is first
    resumed = Connection(session_reused=True)
    keep(tls, resumed)
    assert resumed.read == 0
    refused = Connection()
    for _ in range(24 * 3600):  # a day of probes of a server that resumes nothing
        now += 1.0
        keep(tls, refused)
    assert cast("Any", tls.session_for(ADDRESS)) is refused
    assert 20 < refused.read < 30
    keep(tls, resumed)
    now += 3600.0
    before = refused.read
    for _ in range(600):
        now += 1.0
        keep(tls, refused)
    assert refused.read == before + 2


def test_equal_settings_share_one(world: World) -> None:
    book = ClientTlsBook()
    settings = BackendTls(ca=world.ca)
    one = book.load(settings, AppProtocol.GRPC)
    assert book.find(BackendTls(ca=world.ca), AppProtocol.GRPC) is one
    assert book.find(settings, AppProtocol.HTTP) is not one
    assert book.find(None, AppProtocol.HTTP) is None
    assert len(list(book)) == 2


async def test_what_cannot_be_loaded_is_a_failure_to_connect() -> None:
    tls = ClientTlsBook().find(BackendTls(ca="/nowhere"), AppProtocol.HTTP)
    with pytest.raises(UpstreamError, match="cannot read /nowhere") as caught:
        await dial(asyncio.get_running_loop(), ADDRESS, asyncio.Protocol, 1.0, tls=tls)
    assert caught.value.outcome is Outcome.CONNECT_FAILED


async def test_what_is_not_loaded_yet_is_waited_for_as_long_as_connecting_may_take() -> None:
    asked: list[ClientTls] = []
    book = ClientTlsBook()
    book.load_soon = asked.append
    tls = book.find(BackendTls(), AppProtocol.HTTP)
    assert book.find(BackendTls(), AppProtocol.HTTP) is tls
    assert asked == [tls]
    loop = asyncio.get_running_loop()
    with pytest.raises(UpstreamError, match="certificates have not been read yet") as caught:
        await dial(loop, ADDRESS, asyncio.Protocol, 0.01, tls=tls)
    assert caught.value.outcome is Outcome.CONNECT_FAILED
    dialling = asyncio.gather(dial(loop, ADDRESS, asyncio.Protocol, 10.0, tls=tls))
    asked[0].load()()
    with pytest.raises(UpstreamError) as caught:
        await dialling
    assert caught.value.outcome is Outcome.CONNECT_REFUSED, "it went on to connect"
