"""Listeners: which are on, and where."""

from __future__ import annotations

from typing import Any

from lb.domain.backend import Address
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
