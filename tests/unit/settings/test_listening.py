"""Listeners: which are on, and where."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import ValidationError

from lb.domain.backend import Address
from lb.domain.client import TrustedProxies
from lb.settings.listening import ListenSettings
from lb.settings.model import Settings


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_a_listener_left_out_is_off_and_a_mapping_equals_its_address() -> None:
    listen = make(listen={"http": "127.0.0.1:0", "grpc": {"address": "127.0.0.1:0"}}).listen
    assert listen.http is not None
    assert listen.http.address == Address("127.0.0.1", 0)
    assert listen.http == listen.grpc
    assert listen.metrics is None
    assert listen.admin is None


def test_trusted_proxies_are_networks_addresses_and_unix_sockets() -> None:
    listen = ListenSettings.model_validate(
        {"http": "a:1", "trusted_proxies": ["10.0.0.0/8", "unix", "fd00::1"]}
    )
    assert listen.proxies == TrustedProxies(
        (ip_network("10.0.0.0/8"), ip_network("fd00::1/128")), unix=True
    )
    assert ListenSettings.model_validate({"http": "a:1"}).proxies == TrustedProxies()


@pytest.mark.parametrize("value", ["10.0.0.1/8", "proxy.example", "Unix", 10, ""])
def test_nothing_else_can_be_trusted(value: object) -> None:
    with pytest.raises(ValidationError):
        ListenSettings.model_validate({"http": "a:1", "trusted_proxies": [value]})
