"""What a Triton's metrics page says of its load. The other lines, which are many, are not read.

Names are those of Triton's `core/src/metrics.cc`. A slice of a GPU (MIG) has no utilisation, and a
Triton without a GPU no `nv_gpu_*` at all.
"""

from __future__ import annotations

import re
from math import inf
from typing import Final

from lb.domain.load import DeviceLoad, ModelLoad

_LINE: Final = re.compile(
    rb"^nv_("
    rb"inference_(?:pending_request_count|request_success|exec_count"
    rb"|compute_(?:input|infer|output)_duration_us)"
    rb"|gpu_(?:utilization|memory_(?:used|total)_bytes)"
    rb")\{(.*)\} ([0-9.eE+-]+)",
    re.MULTILINE,
)
_MODEL: Final = re.compile(rb'(?:^|,)model="([^"]*)"')
_DEVICE: Final = re.compile(rb'(?:^|,)gpu_uuid="([^"]*)"')
_FIELD: Final = {
    b"inference_pending_request_count": 0,
    b"inference_request_success": 1,
    b"inference_exec_count": 2,
    b"inference_compute_input_duration_us": 3,
    b"inference_compute_infer_duration_us": 3,
    b"inference_compute_output_duration_us": 3,
}
_DEVICE_FIELD: Final = {
    b"gpu_utilization": 0,
    b"gpu_memory_used_bytes": 1,
    b"gpu_memory_total_bytes": 2,
}
_MOST: Final = 10_000
"""Models, and devices, that are kept."""


class LoadPage:
    """One page, which may be read in pieces of whole lines."""

    def __init__(self) -> None:
        self._models: dict[bytes, list[float]] = {}
        self._devices: dict[bytes, list[float | None]] = {}

    def add(self, lines: bytes) -> None:
        """Read some lines."""
        for name, labels, number in _LINE.findall(lines):
            value = _number(number)
            if value is None:
                continue
            place = _FIELD.get(name)
            if place is not None:
                model = _MODEL.search(labels)
                if model is not None and len(self._models) < _MOST:
                    # Versions, and devices, of a model are added up.
                    self._models.setdefault(model[1], [0.0] * 4)[place] += value
            else:
                device = _DEVICE.search(labels)
                if device is not None and len(self._devices) < _MOST:
                    values = self._devices.setdefault(device[1], [None] * 3)
                    values[_DEVICE_FIELD[name]] = value

    @property
    def models(self) -> dict[bytes, ModelLoad]:
        """By name."""
        return {
            name: ModelLoad(
                pending=pending, requests=requests, executions=runs, execution_s=us / 1e6
            )
            for name, (pending, requests, runs, us) in self._models.items()
        }

    @property
    def devices(self) -> tuple[DeviceLoad, ...]:
        """In the order of the page."""
        return tuple(
            DeviceLoad(
                device=device,
                utilization=None if share is None else min(share, 1.0),
                memory_used=used,
                memory_total=total,
            )
            for device, (share, used, total) in self._devices.items()
        )


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < inf else None
