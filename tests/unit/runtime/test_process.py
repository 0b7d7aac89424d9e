"""The listening sockets; the life of the process is in tests/integration/test_process.py."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lb.net.listeners import ListenError
from lb.runtime.collector import quiet_the_collector
from lb.runtime.sockets import Listeners
from lb.settings.flags import settings_from_flags
from lb.settings.model import Settings


def settings(http: str, grpc: str, metrics: str = "127.0.0.1:0") -> Settings:
    return settings_from_flags(
        ["127.0.0.1:18000"], http=http, grpc=grpc, metrics=metrics, admin="127.0.0.1:0"
    )


@pytest.fixture
def busy() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_port_0_is_told_as_what_it_became() -> None:
    listeners = Listeners(settings("127.0.0.1:0", "[::1]:0"))
    try:
        assert set(listeners.addresses) == {"http", "grpc", "metrics", "admin"}
        for name, bound in listeners.bound.items():
            assert listeners.addresses[name].port == bound.socket.getsockname()[1] > 0
        assert str(listeners.addresses["grpc"]).startswith("[::1]:")
    finally:
        listeners.close()


def test_one_address_for_both_protocols_is_one_socket(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    listeners = Listeners(settings(address, address))
    try:
        assert "grpc" not in listeners.bound
        assert listeners.addresses["grpc"] == listeners.addresses["http"]
    finally:
        listeners.close()


def test_a_busy_address_leaves_nothing_bound(tmp_path: Path, busy: str) -> None:
    path = tmp_path / "http.sock"
    with pytest.raises(ListenError, match=r"cannot listen on .* \(metrics\): Address already in"):
        Listeners(settings(f"unix:{path}", "127.0.0.1:0", busy))
    assert not path.exists()


def test_closing_removes_the_file_of_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    listeners = Listeners(settings("127.0.0.1:0", f"unix:{path}"))
    assert path.exists()
    listeners.close()
    assert not path.exists()


def test_what_was_made_before_the_start_is_never_looked_at_again() -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # the defaults, whatever ran before in this process
    made: list[object] = [[]]
    try:
        quiet_the_collector()
        assert not any(each is made for each in gc.get_objects())
        assert gc.get_threshold() > (700, 10, 10)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
