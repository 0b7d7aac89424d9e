"""Manifests: a group of servers for each kind of device."""

from __future__ import annotations

import pytest

from lb.generate.devices import Device
from lb.generate.kubernetes import resource_of


@pytest.mark.parametrize(
    ("device", "resource"),
    [
        (None, ""),
        (Device("0", "GPU-1"), "nvidia.com/gpu"),
        (Device("0:1", "MIG-1", profile="1g.5gb"), "nvidia.com/mig-1g.5gb"),
        (Device("0:1", "MIG-1", profile="1g.10gb+me"), "nvidia.com/mig-1g.10gb.me"),
    ],
)
def test_a_device_is_a_resource(device: Device | None, resource: str) -> None:
    assert resource_of(device) == resource
