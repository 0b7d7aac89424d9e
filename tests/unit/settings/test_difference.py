"""The difference of two configurations."""

from __future__ import annotations

from typing import Any

from lb.settings.difference import changed_keys
from lb.settings.model import Settings

USUAL: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"},
    "backends": [{"name": "a", "http": "h:1"}, {"name": "b", "http": "h:2"}],
}


def settings(**more: Any) -> Settings:
    return Settings.model_validate(USUAL | more)


def changed(**more: Any) -> tuple[str, ...]:
    return changed_keys(settings(), settings(**more))


def test_equal_settings_do_not_differ() -> None:
    assert changed() == ()
    assert changed(timeouts={"connect": "1000ms"}, health={}) == ()


def test_values_are_named_by_their_paths() -> None:
    assert changed(limits={"head_bytes": 16384}, forwarded="both") == (
        "limits.head_bytes",
        "forwarded",
    )


def test_sections_that_come_or_go_are_named_as_a_whole() -> None:
    listen = {"http": "127.0.0.1:8000", "admin": "127.0.0.1:9"}
    assert changed(listen=listen) == ("listen.grpc", "listen.admin")
    listen = {"http": "127.0.0.1:9000", "grpc": "127.0.0.1:8001"}
    assert changed(listen=listen) == ("listen.http.address",)


def test_backends_go_by_their_names() -> None:
    a, b = USUAL["backends"]
    assert changed(backends=[a, b | {"weight": 2}, {"http": "c:1"}]) == (
        "backends[b].weight",
        "backends[c:1]",
    )
    assert changed(backends=[b]) == ("backends[a]",)


def test_only_their_order_is_told_as_such() -> None:
    a, b = USUAL["backends"]
    assert changed(backends=[b, a]) == ("backends",)


def test_models_go_by_their_names() -> None:
    assert changed(models={"m": {}}) == ("models[m]",)
