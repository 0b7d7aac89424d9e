"""Backends that are one server under two names."""

from __future__ import annotations

from typing import Any

import pytest

from lb.settings.backends import BackendSettings
from lb.settings.shared_addresses import shared_addresses


def found(*entries: dict[str, Any]) -> list[tuple[str, str]]:
    named = ({"name": name, **entry} for name, entry in zip("abc", entries, strict=False))
    return [tuple(each) for each in shared_addresses(map(BackendSettings.model_validate, named))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"http": "gpu-0:8000"}, {"http": "gpu-0:8000"}),
        ({"http": "gpu-0:8000"}, {"http": "GPU-0.:8000"}),
        ({"http": "[::1]:8000"}, {"http": "[0:0::0001]:8000"}),
        ({"http": "[FE80::A]:1"}, {"http": "[fe80::a]:1"}),
        ({"grpc": "gpu-0:8001"}, {"grpc": "gpu-0:8001"}),
        ({"http": "gpu-0:8000"}, {"grpc": "gpu-0:8000"}),
        ({"http": "unix:/run/a"}, {"http": "unix:/run/a"}),
        ({"http": "a:1", "kind": "kserve"}, {"http": "a:1", "kind": "generic"}),
        ({"http": "a:1", "grpc": "a:2"}, {"http": "a:1", "grpc": "a:2", "tls": {}}),
    ],
)
def test_the_same_address_is_found(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert found(one, other) == [("b", "a")]
    assert found(other, {"http": "x:1"}, one) == [("c", "a")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"http": "gpu-0:8000"}, {"http": "gpu-0:8001"}),
        ({"http": "gpu-0:8000"}, {"http": "gpu-1:8000"}),
        ({"http": "a:1", "grpc": "a:1"}, {"http": "b:1", "grpc": "b:1"}),
        ({"http": "a:1", "metrics": "m:1"}, {"http": "b:1", "metrics": "m:1"}),
        ({"http": "unix:/run/a"}, {"http": "unix:/run/A"}),
    ],
)
def test_other_addresses_are_none_of_it(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert found(one, other) == []


def test_the_text_names_both() -> None:
    entries = [BackendSettings.model_validate({"name": name, "http": "a:1"}) for name in "ab"]
    assert str(shared_addresses(entries)[0]) == (
        "'a' and 'b' have the same address: that server gets the load of both; drop one"
    )
