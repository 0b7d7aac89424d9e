"""Which inherited socket is whose."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lb.runtime.predecessor import Inherited
from lb.runtime.sockets import Listeners, claim
from lb.settings.model import Settings

Bind = Callable[..., socket.socket]


def settings(**listen: Any) -> Settings:
    return Settings.model_validate({"listen": listen, "backends": [{"http": "b:1"}]})


@pytest.fixture
def bind() -> Iterator[Bind]:
    made: list[socket.socket] = []

    def make(*, listens: bool = True) -> socket.socket:
        sock = socket.socket()
        made.append(sock)
        sock.bind(("127.0.0.1", 0))
        if listens:
            sock.listen()
        return sock

    yield make
    for sock in made:
        sock.close()


def address_of(sock: socket.socket) -> str:
    return f"127.0.0.1:{sock.getsockname()[1]}"


def test_a_name_wins_over_the_address(bind: Bind) -> None:
    sock = bind()
    given = settings(http="127.0.0.1:8000", grpc="127.0.0.1:8001")
    [bound] = claim([Inherited("grpc", "", sock, is_ours=False)], given)
    assert bound.name == "grpc"
    assert bound.socket is sock
    assert str(bound.address) == address_of(sock)
    assert not sock.getblocking()


def test_without_a_name_the_address_tells(bind: Bind) -> None:
    sock = bind()
    given = settings(http="127.0.0.1:8000", grpc=address_of(sock))
    [bound] = claim([Inherited("lb.socket", "", sock, is_ours=False)], given)
    assert bound.name == "grpc"


def test_what_was_asked_for_tells_of_an_earlier_process(bind: Bind) -> None:
    one, two = bind(), bind()
    given = settings(http="127.0.0.1:0", grpc="[::1]:0", metrics="127.0.0.1:9")
    inherited = [
        Inherited("grpc", "[::1]:0", two, is_ours=True),
        Inherited("http", "127.0.0.1:0", one, is_ours=True),
    ]
    found = {bound.name: bound.socket for bound in claim(inherited, given)}
    assert found == {"http": one, "grpc": two}


@pytest.mark.parametrize("wanted", ["", "127.0.0.1:7"])
def test_what_is_for_nobody_is_closed(bind: Bind, wanted: str) -> None:
    sock = bind()
    assert claim([Inherited("old", wanted, sock, is_ours=True)], settings(http="a:1")) == ()
    assert sock.fileno() == -1


def test_what_does_not_listen_is_not_used(bind: Bind) -> None:
    sock = bind(listens=False)
    assert claim([Inherited("http", "", sock, is_ours=False)], settings(http="a:1")) == ()


def test_files_of_sockets_that_others_bound_stay(tmp_path: Path) -> None:
    path = tmp_path / "lb.sock"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    given = settings(http=f"unix:{path}")
    listeners = Listeners(given, claim([Inherited("http", "", sock, is_ours=False)], given))
    assert listeners.fresh == []
    listeners.close()
    assert path.exists()
