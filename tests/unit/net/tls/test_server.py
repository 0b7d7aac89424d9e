"""A listener's contexts: by name, renewed as a whole, left alone when something is wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from lb.net.tls.contexts import TlsError
from lb.net.tls.server import ClientCertificates, ServerTls
from tests.fakes.tls import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_contexts_go_by_name(world: World) -> None:
    exact = world.pair("exact", "a.example", "b.example")
    wild = world.pair("wild", "*.example", "b.example", "*.deep.example")
    tls = ServerTls("https", world.options(exact, wild), ("h2",))
    default, first, second = (tls.context(n) for n in ("localhost", "a.example", "x.example"))
    assert len({default, first, second}) == 3
    assert tls.context("b.example") is first  # the first that has it
    assert tls.context("x.deep.example") is second
    for name in ("", "example", "x.y.example", "other", "a.example.org"):
        assert tls.context(name) is default


def test_files_are_all_that_is_read(world: World) -> None:
    tls = ServerTls("https", world.options(clients=ClientCertificates.REQUIRED), ("h2",))
    assert tls.files == (*world.server, world.ca)
    assert tls.context("").verify_mode is ssl.CERT_REQUIRED
    assert [file for file, _ in tls.expiries] == [world.server[0]]


def test_loading_replaces_all_contexts_or_none(world: World) -> None:
    more = world.pair("more", "more.example")
    tls = ServerTls("https", world.options(more), ("h2",))
    before = [tls.context(name) for name in ("localhost", "more.example")]
    Path(more[1]).write_bytes(world.authority.issue("x").key)
    with pytest.raises(TlsError, match="is not the key of"):
        tls.load()
    assert [tls.context(name) for name in ("localhost", "more.example")] == before
    world.pair("more", "other.example")
    tls.load()()
    assert tls.context("localhost") not in before
    assert tls.context("more.example") is tls.context("localhost")
    assert tls.context("other.example") is not tls.context("localhost")


def test_what_cannot_be_loaded_at_first_is_an_error(world: World) -> None:
    with pytest.raises(TlsError):
        ServerTls("https", world.options(("/nowhere", "/nowhere")), ("h2",))
