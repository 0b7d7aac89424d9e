"""What a Triton's metrics page says of its load. The other lines, which are many, are not read.

Names are those of Triton's `core/src/metrics.cc`. A slice of a GPU (MIG) has no utilisation, and a
Triton without a GPU no `nv_gpu_*` at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from sys import float_info
from typing import Final

from lb.domain.load import DeviceLoad, ModelLoad

_MODEL: Final = b'model="'
_DEVICE: Final = b'gpu_uuid="'
_COMMA: Final = 0x2C
_BEGIN: Final = (b"nv_inference_", b"nv_gpu_")
_OF_MODEL: Final = {
    b"nv_inference_pending_request_count": 0,
    b"nv_inference_request_success": 1,
    b"nv_inference_exec_count": 2,
    b"nv_inference_compute_infer_duration_us": 3,
}
_OF_DEVICE: Final = {
    b"nv_gpu_utilization": 0,
    b"nv_gpu_memory_used_bytes": 1,
    b"nv_gpu_memory_total_bytes": 2,
}
STEP_BYTES: Final = 16 * 1024
"""Bytes of a page that one step reads, in a millisecond where its lines are the shortest."""
_MAX_NAMES: Final = 10_000
"""Models, and devices, that are kept."""
_NAME_BYTES: Final = 400
"""What a model takes beside its name."""
_MAX_LINE: Final = 4096
"""Longest line: a name of a model may have a thousand bytes."""


class LoadPage:
    """One page, which may be read in parts."""

    def __init__(self) -> None:
        self.is_cut = False
        """Lines were left out, because they are too long or name too many models."""
        self._models: dict[bytes, dict[int, float]] = {}
        self._devices: dict[bytes, dict[int, float]] = {}
        self._rest = b""
        """A line whose end has not come yet; of one that is too long the beginning."""

    @property
    def size(self) -> int:
        """Bytes that what was read takes, roughly."""
        names = (*self._models, *self._devices)
        return sum(map(len, names)) + _NAME_BYTES * len(names)

    def finish(self) -> None:
        """Read the last line, which needs no end."""
        self.add(b"\n")

    def add(self, text: bytes) -> None:
        """Read a part of the page, which may end within a line."""
        lines = text.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()[: _MAX_LINE + 1]
        for line in lines:
            if not line.startswith(_BEGIN):
                continue
            if len(line) > _MAX_LINE:
                self.is_cut = True
                continue
            name, _, rest = line.partition(b"{")
            if name in _OF_MODEL:
                self._add(self._models, _OF_MODEL[name], _MODEL, rest)
            elif name in _OF_DEVICE:
                self._add(self._devices, _OF_DEVICE[name], _DEVICE, rest)

    def _add(
        self, found: dict[bytes, dict[int, float]], place: int, label: bytes, rest: bytes
    ) -> None:
        """Add a number to what is known of a model or device."""
        begin = rest.find(label)
        if begin > 0 and rest[begin - 1] != _COMMA:
            begin = rest.find(b"," + label) + 1 or -1
        begin += len(label)
        name = rest[begin : rest.find(b'"', begin)]
        try:
            value = float(rest[rest.rfind(b" ") + 1 :])
        except ValueError:
            return
        if begin >= len(label) and 0 <= value < inf:
            values = found.get(name)
            if values is None:
                if len(found) >= _MAX_NAMES:
                    self.is_cut = True
                    return
                values = found[name] = {}
            # Versions of a model are added up. Who reads JSON knows no infinity.
            values[place] = min(values.get(place, 0.0) + value, float_info.max)

    @property
    def models(self) -> dict[bytes, ModelLoad]:
        """By name."""
        return dict(self.loads())

    def loads(self) -> Iterator[tuple[bytes, ModelLoad]]:
        """Each model and its load: there may be thousands."""
        for name, values in self._models.items():
            yield (
                name,
                ModelLoad(
                    pending=values.get(0, 0.0),
                    requests=values.get(1, 0.0),
                    executions=values.get(2, 0.0),
                    execution_s=values.get(3, 0.0) / 1e6,
                ),
            )

    @property
    def devices(self) -> tuple[DeviceLoad, ...]:
        """In the order of the page."""
        return tuple([
            DeviceLoad(
                device=device,
                utilization=min(values[0], 1.0) if 0 in values else None,
                memory_used=values.get(1),
                memory_total=values.get(2),
            )
            for device, values in self._devices.items()
        ])  # fmt: skip
