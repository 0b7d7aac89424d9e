from __future__ import annotations

from lb.domain.fault import Fault


def test_only_broken_devices_are_certain() -> None:
    assert {fault for fault in Fault if fault.is_certain} == {Fault.DEVICE}
