"""GPUs and MIG devices, as `nvidia-smi -L` and `nvidia-smi --query-gpu` list them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

QUERY: Final = "--query-gpu=index,uuid,name,mig.mode.current"
"""Its lines may follow those of `-L`: they tell of GPUs whose MIG mode is on without a device."""
WHOLE_GPU_SLICES: Final = 7
"""Compute slices of an A100, H100, H200 or B200."""
_SMALL_GPU_SLICES: Final = 4
_SMALL_GPUS: Final = re.compile(r"\bA30\b|\bRTX PRO\b")
"""Products that MIG divides into four."""
_GPU: Final = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG: Final = re.compile(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[0-9A-Za-z/-]+)\)")
_ROW: Final = re.compile(r"(\d+), (GPU-[0-9A-Za-z-]+), (.+), (Enabled|Disabled|\[?N/A\]?)")
_HEADING: Final = re.compile(r"index, uuid, name, .*")
_NOTHING: Final = re.compile(r"No devices (were )?found\.?")
_SLICES: Final = re.compile(r"(?:(\d)c\.)?(\d)g\.\d+gb.*")


class GenerateError(Exception):
    """No stack can be written; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Device:
    """What one server computes on: a whole GPU or a MIG device."""

    index: str
    """`0`, or `0:3` for the fourth MIG device of the first GPU, as container runtimes have it."""
    identifier: str
    """Its UUID, or the index where that is all there is."""
    product: str = ""
    """Of the GPU, such as `NVIDIA A30`; empty where nobody said."""
    profile: str = ""
    """Of a MIG device, such as `1g.5gb`; empty for a whole GPU."""

    @property
    def name(self) -> str:
        """`gpu-0` or `gpu-0-mig-3`."""
        gpu, _, mig = self.index.partition(":")
        return f"gpu-{gpu}-mig-{mig}" if mig else f"gpu-{gpu}"

    @property
    def slices(self) -> int:
        """How many compute slices it has."""
        return slices_of(self.profile) if self.profile else slices_of_gpu(self.product)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a machine has."""

    devices: tuple[Device, ...] = ()
    """In the order of their indexes. A GPU that is divided is there as its parts only."""
    empty: tuple[str, ...] = ()
    """Indexes of GPUs in MIG mode that nothing can run on, since they have no MIG device."""


def slices_of(profile: str) -> int:
    """Compute slices of a MIG profile such as `3g.20gb`, `1c.3g.20gb` or `1g.10gb+me`.

    Raises:
        GenerateError: it is none.
    """
    match = _SLICES.fullmatch(profile)
    if match is None:
        raise GenerateError(f"expected a MIG profile such as 1g.5gb, got {profile!r}")
    return int(match[1] or match[2])


def slices_of_gpu(product: str) -> int:
    """Compute slices of a whole GPU that MIG could divide; 7 where it is not known."""
    return _SMALL_GPU_SLICES if _SMALL_GPUS.search(product) else WHOLE_GPU_SLICES


@dataclass(slots=True)
class _Gpu:
    """A GPU while its lines are read."""

    device: Device
    is_divided: bool = False
    """Its MIG mode is on."""
    parts: dict[str, Device] = field(default_factory=dict)
    """By index."""


def parse_listing(text: str) -> Listing:
    """Read the output of `nvidia-smi -L`, of `nvidia-smi QUERY --format=csv`, or of both.

    Both spellings of MIG devices are known: `MIG-GPU-<uuid>/<gi>/<ci>` of 2020 and `MIG-<uuid>`.

    Raises:
        GenerateError: names the first line that is neither.
    """
    gpus: dict[str, _Gpu] = {}
    latest: _Gpu | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := _GPU.fullmatch(line):
            latest = _gpu_of(gpus, Device(match[1], match[3], match[2]))
        elif match := _ROW.fullmatch(line):
            latest = _gpu_of(gpus, Device(match[1], match[2], match[3]))
            latest.is_divided = match[4] == "Enabled"
        elif latest is not None and (match := _MIG.fullmatch(line)):
            profile = _checked(match[1], number)
            index = f"{latest.device.index}:{match[2]}"
            part = replace(latest.device, index=index, identifier=match[3], profile=profile)
            latest.parts[index] = part
        elif line and not (_HEADING.fullmatch(line) or _NOTHING.fullmatch(line)):
            raise GenerateError(f"line {number}: this is no line of `nvidia-smi -L`: {raw[:80]!r}")
    return _listing(sorted(gpus.values(), key=lambda gpu: int(gpu.device.index)))


def _gpu_of(gpus: dict[str, _Gpu], device: Device) -> _Gpu:
    return gpus.setdefault(device.index, _Gpu(device))


def _checked(profile: str, number: int) -> str:
    try:
        slices_of(profile)
    except GenerateError as error:
        raise GenerateError(f"line {number}: {error}") from error
    return profile


def _listing(gpus: Iterable[_Gpu]) -> Listing:
    devices: list[Device] = []
    empty = []
    for gpu in gpus:
        if gpu.parts:
            devices += gpu.parts.values()
        elif gpu.is_divided:
            empty.append(gpu.device.index)
        else:
            devices.append(gpu.device)
    return Listing(tuple(devices), tuple(empty))


def whole_gpus(count: int) -> tuple[Device, ...]:
    """GPUs of another machine, by their indexes."""
    return tuple(Device(str(index), str(index)) for index in range(count))


def choose(devices: Sequence[Device], wanted: Sequence[str]) -> tuple[Device, ...]:
    """The devices that a list names, in the order of the machine.

    Args:
        devices: what there is.
        wanted: each the index (`0`; that of a divided GPU means all its parts; `0:3`), the name
            (`gpu-0-mig-3`) or the UUID of a device, or an unambiguous beginning of a UUID.

    Raises:
        GenerateError: nothing, or more than one device, is called so.
    """
    chosen: set[str] = set()
    for word in wanted:
        found = _named(devices, word)
        if not found:
            there = ", ".join(device.index for device in devices) or "none"
            raise GenerateError(f"--devices: there is no device {word!r}; there are: {there}")
        chosen.update(device.index for device in found)
    return tuple(device for device in devices if device.index in chosen)


def _named(devices: Sequence[Device], word: str) -> list[Device]:
    exact = [each for each in devices if word in (each.index, each.name, each.identifier)]
    if exact:
        return exact
    parts = [each for each in devices if word.isdecimal() and each.index.startswith(f"{word}:")]
    if parts:
        return parts
    begun = [each for each in devices if "-" in word and each.identifier.startswith(word)]
    if len(begun) > 1:
        raise GenerateError(f"{word!r} is the beginning of several UUIDs")
    return begun


def as_written(wanted: Sequence[str]) -> tuple[Device, ...]:
    """Devices of a machine that cannot be asked, by UUID or index, in the order given.

    Raises:
        GenerateError: one is neither, or there twice.
    """
    devices = []
    for position, word in enumerate(wanted):
        if re.fullmatch(r"\d+(:\d+)?", word):
            devices.append(Device(word, word))
        elif re.fullmatch(r"GPU-[0-9A-Za-z-]+|MIG-[0-9A-Za-z/-]+", word):
            devices.append(Device(str(position), word))
        else:
            raise GenerateError(f"{word!r} is neither the index nor the UUID of a device")
    for key in ("identifier", "index"):
        values = [getattr(device, key) for device in devices]
        if len(set(values)) < len(values):
            raise GenerateError("a device is named twice, or by index beside UUIDs")
    return tuple(devices)
