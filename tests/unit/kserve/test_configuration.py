from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve.configuration import Configuration, configuration_from_json


def read(**content: Any) -> Configuration:
    return configuration_from_json(json.dumps(content).encode())


def test_equal_configurations_have_equal_digests_in_any_order() -> None:
    assert read(a=1, b={"c": [1], "d": 2}).digest == read(b={"d": 2, "c": [1]}, a=1).digest
    assert read(a=1).digest != read(a=2).digest


def test_the_gpus_of_a_machine_do_not_count() -> None:
    def on(*gpus: int, count: int = 1) -> Configuration:
        return read(instance_group=[{"count": count, "kind": "KIND_GPU", "gpus": list(gpus)}])

    assert on(0).digest == on(0, 1).digest != on(0, count=2).digest


def test_a_load_is_given_what_the_server_said() -> None:
    body = b' {"name": "m", "instance_group": [{"gpus": [0]}, 5]}'
    assert configuration_from_json(body).text == body.decode()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 100_000])
def test_what_is_no_configuration_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        configuration_from_json(body)
