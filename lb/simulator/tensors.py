"""Tensors, and their three forms: Python values, KServe's binary form, JSON.

The binary form is little-endian and row-major; an element of a BYTES tensor is its length in four
bytes and then its content (KServe v2, "binary tensor data" extension).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lb.kserve.datatypes import BYTES, FORMATS

Value = bool | int | float | bytes

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor; `data` is in the binary form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def values(self) -> list[Value]:
        """The elements in row-major order."""
        return unpack(self.datatype, self.data)


def make_tensor(name: str, datatype: str, values: Sequence[Value]) -> Tensor:
    """Return a tensor of one dimension."""
    return Tensor(name, datatype, (len(values),), pack(datatype, values))


def is_datatype(datatype: str) -> bool:
    """Whether this is a datatype that the simulated Triton knows."""
    return datatype == BYTES or datatype in FORMATS


def element_size(datatype: str) -> int | None:
    """Bytes of one element; None where elements differ in size."""
    return None if datatype == BYTES else struct.calcsize(f"<{FORMATS[datatype]}")


def element_count(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)


def pack(datatype: str, values: Sequence[Value]) -> bytes:
    """Return the binary form of `values`.

    Raises:
        struct.error, OverflowError: a value does not fit the datatype.
    """
    if datatype == BYTES:
        return b"".join(_LENGTH.pack(len(value)) + value for value in map(_as_bytes, values))
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def unpack(datatype: str, data: bytes) -> list[Value]:
    """Return the elements that stand in `data`.

    Raises:
        ValueError: `data` is not a whole number of elements.
    """
    if datatype == BYTES:
        return list(_split(data))
    letter = FORMATS[datatype]
    count, rest = divmod(len(data), struct.calcsize(f"<{letter}"))
    if rest:
        raise ValueError(f"{rest} bytes after the last {datatype} element")
    return list(struct.unpack(f"<{count}{letter}", data))


def _as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise struct.error("a BYTES element must be bytes")
    return value


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        if start > len(data):
            raise ValueError("a BYTES element lacks its length")
        at = start + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            raise ValueError("a BYTES element is shorter than its length says")
        yield data[start:at]
