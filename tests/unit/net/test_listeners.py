"""Listening sockets: real ones, on loopback and on paths."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from lb.domain.backend import Address
from lb.net.listeners import ListenError, bind, bound_address

LOOPBACK = Address(host="127.0.0.1", port=0)


def test_a_free_port_is_told() -> None:
    with bind("http", LOOPBACK) as listener:
        address = bound_address(listener, LOOPBACK)
        assert address.host == "127.0.0.1"
        assert address.port > 0
        with socket.create_connection((address.host, address.port)):
            pass
        assert not listener.getblocking()


def test_a_busy_port_is_one_clear_sentence() -> None:
    with bind("http", LOOPBACK) as listener:
        wanted = bound_address(listener, LOOPBACK)
        with pytest.raises(ListenError) as caught:
            bind("grpc", wanted)
    assert str(caught.value) == f"cannot listen on {wanted} (grpc): Address already in use"


@pytest.mark.parametrize(
    "address",
    [Address(host="192.0.2.1", port=0), Address(host="name.invalid", port=0)],
    ids=["not ours", "no such name"],
)
def test_an_address_that_is_not_ours_is_refused(address: Address) -> None:
    """An address of another machine, a name that does not resolve."""
    with pytest.raises(ListenError, match=r"cannot listen on .* \(http\): .+"):
        bind("http", address)


def test_every_interface_of_ipv6_takes_ipv4_too() -> None:
    wanted = Address(host="::", port=0)
    with bind("http", wanted) as listener:
        port = bound_address(listener, wanted).port
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)):
                pass


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "lb.sock"))
    bind("http", address).close()
    assert stat.S_ISSOCK(os.stat(address.path).st_mode)
    with bind("http", address) as listener:
        assert bound_address(listener, address) == address
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.path)


def test_a_living_socket_and_a_file_are_not_replaced(tmp_path: Path) -> None:
    """A path that somebody listens on, a path of something else, a directory that is not there."""
    address = Address(path=str(tmp_path / "lb.sock"))
    with bind("http", address), pytest.raises(ListenError, match="Address already in use"):
        bind("http", address)
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ListenError, match="Address already in use"):
        bind("http", Address(path=str(file)))
    assert file.read_text() == "precious"
    with pytest.raises(ListenError, match="No such file or directory"):
        bind("http", Address(path=str(tmp_path / "none" / "lb.sock")))
