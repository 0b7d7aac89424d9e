from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lb.runtime.signals import notify


def test_state_reaches_the_socket_of_the_environment(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        notify("READY=1", {"NOTIFY_SOCKET": path})
        assert manager.recv(100) == b"READY=1"


def test_an_at_sign_means_the_abstract_name_space(tmp_path: Path) -> None:
    name = f"triton-lb-test-{tmp_path.name}-{id(tmp_path)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        manager.settimeout(30)
        notify("STOPPING=1", {"NOTIFY_SOCKET": "@" + name})
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("target", ["", "relative", "/nobody/listens/here"])
def test_a_manager_that_does_not_listen_is_ignored(target: str) -> None:
    assert notify("READY=1", {"NOTIFY_SOCKET": target}) is None
