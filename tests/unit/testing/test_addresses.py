from __future__ import annotations

import socket

import pytest

from lb.testing.addresses import HOST, free_addresses


def test_any_ports_are_different_and_no_connection_gets_them() -> None:
    ports = [int(address.removeprefix(f"{HOST}:")) for address in free_addresses([0] * 50)]
    assert len(set(ports)) == 50
    assert max(ports) < 32_768


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            free_addresses([taken.getsockname()[1]])
