"""Sockets from settings: sharing, names, TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.net.listeners import ListenError
from lb.runtime.sockets import Listeners, endpoints
from lb.settings.model import Settings

TLS = {"certificates": [{"certificate": "c", "key": "k"}]}
BOTH = (AppProtocol.HTTP, AppProtocol.GRPC)


def settings(**listen: Any) -> Settings:
    return Settings.model_validate({"listen": listen, "backends": [{"http": "b:1"}]})


def test_listeners_at_one_address_share_their_socket_and_tls() -> None:
    given = settings(
        http="127.0.0.1:1",
        grpc="127.0.0.1:2",
        https={"address": "127.0.0.1:3", "tls": TLS},
        grpcs="127.0.0.1:3",
    )
    found = endpoints(given)
    assert [endpoint.name for endpoint in found] == ["http", "grpc", "https"]
    assert [endpoint.protocols for endpoint in found] == [BOTH[:1], BOTH[1:], BOTH]
    assert [endpoint.tls is not None for endpoint in found] == [False, False, True]
    assert found[2].names == ("https", "grpcs")


def test_tls_may_stand_at_either_of_two() -> None:
    (one,) = endpoints(settings(http="a:1", grpc={"address": "a:1", "tls": TLS}))
    assert one.tls is not None


def test_the_age_of_connections_is_each_listeners_or_of_both_at_one_address() -> None:
    aged = {"address": "a:1", "max_connection_age": "5m"}
    assert [each.max_connection_age_s for each in endpoints(settings(http=aged, grpc="a:2"))] == [
        300.0,
        0.0,
    ]
    (one,) = endpoints(settings(http="a:1", grpc=aged))
    assert one.max_connection_age_s == 300.0


def test_sockets_are_bound_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "lb.sock"
    listeners = Listeners(
        settings(
            http="127.0.0.1:0", grpc="127.0.0.1:0", metrics=f"unix:{path}", admin="127.0.0.1:0"
        )
    )
    assert set(listeners.bound) == {"http", "metrics", "admin"}
    assert listeners.addresses["grpc"] == listeners.addresses["http"]
    assert listeners.addresses["http"].port != 0
    assert path.exists()
    listeners.close()
    assert not path.exists()


def test_a_socket_that_cannot_be_bound_leaves_none_open(tmp_path: Path) -> None:
    path = tmp_path / "lb.sock"
    with pytest.raises(ListenError, match=r"cannot listen on .* \(admin\)"):
        Listeners(settings(http=f"unix:{path}", admin=f"unix:{tmp_path}/no/such"))
    assert not path.exists()


def test_a_socket_of_ours_that_is_in_the_way_is_named() -> None:
    first = Listeners(settings(http="127.0.0.1:0"))
    ours = first.addresses["http"]
    wanted = settings(http=f"0.0.0.0:{ours.port}")
    with pytest.raises(ListenError) as raised:
        Listeners(wanted, first.bound.values())
    first.close()
    assert str(raised.value).endswith(
        f"(http): Address already in use: this process has {ours} (http); "
        "restart it, or use another port"
    )


def test_a_port_for_requests_may_be_shared_by_processes_that_say_so() -> None:
    first = Listeners(settings(http="127.0.0.1:0", admin="127.0.0.1:0", reuse_port=True))
    http, admin = (str(first.addresses[name]) for name in ("http", "admin"))
    second = Listeners(settings(http=http, reuse_port=True))
    assert second.addresses["http"] == first.addresses["http"]
    for taken in (settings(http=http), settings(http=admin, reuse_port=True)):
        with pytest.raises(ListenError, match="Address already in use"):
            Listeners(taken)
    first.close()
    second.close()
