"""No setting is forgotten by a reload: each changes a part, or is read when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from lb.runtime.logs import Logs
from lb.runtime.reload import prepare
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from lb.settings.section import Section, key_of
from tests.fakes.configured import configuration_of

READ_WHEN_NEEDED = {
    "listen",  # compared as sockets: tests/unit/runtime/test_listener_set.py
    "fronts",  # likewise
    "limits.max_connections",  # budget of the doors
    "timeouts.handshake",  # also of every new door
    "access_log",  # tests/unit/runtime/test_change.py
    "log",
    "metrics.backends",
    "workers",  # needs a restart: a reload that changes it is refused
    "admin.insecure",  # decides about the file alone
    "shutdown",
    "reload",
    "models",
}
"""Settings that are no part's own, with those below them."""

FITTING = {"limits.memory_bytes": 64 << 20}
"""Other values of settings that depend on further ones."""


def leaves(section: Section, path: str = "") -> Iterator[tuple[str, Any]]:
    """All simple settings with their values."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        where = f"{path}.{key_of(name)}" if path else key_of(name)
        if isinstance(value, Section):
            yield from leaves(value, where)
        elif isinstance(value, (bool, int, float, Enum)):
            yield where, value


def other(value: Any) -> Any:
    """Another value that is as good."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(each.value for each in type(value) if each is not value)
    return value / 2 if isinstance(value, float) and value else value + 1


def changed(settings: dict[str, Any], path: str, value: Any) -> Settings:
    """The settings with one other value."""
    tree: dict[str, Any] = {**settings}
    inside = tree
    *above, name = path.split(".")
    for each in above:
        inside[each] = inside = {**inside.get(each, {})}
    inside[name] = value
    return Settings.model_validate(tree)


async def forgotten(folder: Path) -> list[str]:
    tree = {
        "listen": {"http": f"unix:{folder}/http.sock"},
        "backends": [{"name": "a", "http": "127.0.0.1:1"}],
        "slow_start": {"window": "5s"},
        "outlier_detection": {"enabled": True},
        "hedging": {"enabled": True},
        "tracing": {"endpoint": "http://127.0.0.1:1/v1/traces"},
        "scheduling": {"reserved": 0.5},
        "placement": {"mode": "on_demand", "max_models": 4},
        "payload_log": {"path": f"{folder}/payloads", "models": {"m": 1.0}},
        "access": {"tokens": [{"name": "t", "token": "0123456789abcdef", "roles": ["infer"]}]},
    }
    first = Settings.model_validate(tree)
    logs = Logs(first)
    product = LoadBalancer(first, logs)
    found = []
    for path, value in leaves(first):
        if any(path == each or path.startswith(f"{each}.") for each in READ_WHEN_NEEDED):
            continue
        states = []
        for settings in (first, changed(tree, path, FITTING.get(path) or other(value))):
            change = prepare(product, (), settings)
            change.apply(product)
            change.listeners.close()
            states.append({**configuration_of(product), "settings": None})
        if states[0] == states[1]:
            found.append(path)
    await product.aclose()
    logs.close()
    return found


def test_every_setting_reaches_its_part(tmp_path: Path) -> None:
    assert asyncio.run(forgotten(tmp_path)) == []
