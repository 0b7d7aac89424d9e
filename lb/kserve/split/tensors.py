"""What both protocols need to know of tensors to cut and join them by rows.

Source: Triton's "binary tensor data" extension for the sizes and for the layout of BYTES: each
element is a length of four bytes, little-endian, and so many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from lb.kserve.datatypes import BYTES, SIZES
from lb.kserve.merge.steps import Steps
from lb.wire.rope import Held, Rope

MAX_WALKED: Final = 2**16
"""Elements of a BYTES tensor that are walked over, in steps: twenty milliseconds."""
_WALKED_AT_ONCE: Final = 2048
"""Elements of them in one step."""
_MAX_DIMENSIONS: Final = 64
"""Of a tensor. Triton has no limit; the product of very many would take long."""
MAX_PARSED: Final = 2**19
"""Bytes of JSON, or of typed contents, that are read. JSON is read in steps."""
SEQUENCE: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
"""Parameters of a request that is a step of a sequence."""
_MAX_OFFSET: Final = 2**63 - 1
"""End of a tensor in shared memory, at most: both protocols have such integers."""
_VERSION: Final = re.compile("[0-9]{1,19}")
REGION: Final = "shared_memory_region"
OFFSET: Final = "shared_memory_offset"
BYTE_SIZE: Final = "shared_memory_byte_size"


class NotSplit(Exception):
    """The request cannot be cut by rows; the text says why."""


class NotMerged(Exception):
    """The answers to the parts of a request cannot be joined."""

    def __init__(self, why: str, *, is_of_model: bool = True) -> None:
        super().__init__(why)
        self.is_of_model = is_of_model
        """No other answers of the model could be joined either."""


class VersionsDiffer(NotMerged):
    """Several versions of the model answered parts of one request."""

    def __init__(self, versions: Iterable[str]) -> None:
        found = sorted(set(versions), key=lambda version: (len(version), version))
        text = f"versions {' and '.join(found)} of the model answered parts of the request"
        super().__init__(text, is_of_model=False)
        self.newest = found[-1].encode() if _VERSION.fullmatch(found[-1]) else b""
        """The largest of them; empty where that is no number, as versions are."""


def common_rows(shapes: Sequence[Sequence[int]]) -> int:
    """The rows of a request, given the shapes of its inputs.

    Raises:
        NotSplit: they differ, there is nothing to cut, or a shape has no batch dimension, a
            negative one, or very many.
    """
    found = set()
    has_data = False
    for shape in shapes:
        if len(shape) > _MAX_DIMENSIONS:
            raise NotSplit("an input has very many dimensions")
        if not shape or min(shape) < 0:
            raise NotSplit("an input has no batch dimension")
        found.add(shape[0])
        has_data = has_data or 0 not in shape[1:]
    if len(found) != 1:
        raise NotSplit("inputs differ in their batch dimension")
    rows = found.pop()
    if rows < 2:
        raise NotSplit("it has one row")
    if not has_data:
        raise NotSplit("its rows are empty")
    return rows


def stride(datatype: str, shape: Sequence[int]) -> int:
    """Bytes of a row of a tensor whose elements have a fixed size.

    Raises:
        NotSplit: the data type is not known.
    """
    size = SIZES.get(datatype)
    if size is None:
        raise NotSplit(f"rows of {datatype} have no fixed size")
    return prod(shape[1:]) * size


def check_region(offset: int, size: int, expected: int) -> None:
    """Check that a tensor in shared memory is as long as its shape says, and has a place there.

    Raises:
        NotSplit: it is not.
    """
    if size != expected:
        raise NotSplit("an input in shared memory is not as long as its shape says")
    if not 0 <= offset <= _MAX_OFFSET - size:
        raise NotSplit("an input in shared memory has no place there")


class Rows:
    """The data of a tensor as it stands on the wire, by rows. Slices are views, not copies."""

    __slots__ = ("_bounds", "_data", "_stride")

    def __init__(self, data: Rope, row_size: int, bounds: list[int] | None = None) -> None:
        """
        Args:
            data: of all rows.
            row_size: bytes of each row, unless there are bounds.
            bounds: where the rows begin, and where the last one ends.
        """
        self._data = data
        self._stride = row_size
        self._bounds = bounds

    def pieces(self, first: int, count: int) -> list[Held]:
        """The bytes of `count` rows from row `first` on, where they lie."""
        return self._data.pieces(*self._ends(first, count))

    def _ends(self, first: int, count: int) -> tuple[int, int]:
        """Where some rows begin and end."""
        if self._bounds is not None:
            return self._bounds[first], self._bounds[first + count]
        return first * self._stride, (first + count) * self._stride


def find_rows(data: Rope, datatype: str, shape: Sequence[int]) -> Steps[Rows]:
    """The rows of a tensor as it stands on the wire. Those of BYTES are found in steps.

    Raises:
        NotSplit: the data is not what data type and shape say.
    """
    if datatype == BYTES:
        return Rows(data, 0, (yield from _bounds(data, shape[0], prod(shape[1:]))))
    row_size = stride(datatype, shape)
    if len(data) != shape[0] * row_size:
        raise NotSplit("an input is not as long as its shape says")
    return Rows(data, row_size)


def _bounds(data: Rope, rows: int, each: int) -> Steps[list[int]]:
    """Where the rows of a BYTES tensor begin, and where the last one ends.

    Raises:
        NotSplit: it is broken, or has very many elements.
    """
    if rows * max(each, 1) > MAX_WALKED:
        raise NotSplit("a BYTES input has very many elements")
    at, end, left = 0, len(data), _WALKED_AT_ONCE
    bounds = [0]
    for _ in range(rows):
        for _ in range(each):
            if at + 4 > end:
                raise NotSplit("a BYTES input is cut off")
            at += 4 + data.u32(at)
            left -= 1
            if not left:
                left = _WALKED_AT_ONCE
                yield
        if at > end:
            raise NotSplit("a BYTES input is cut off")
        bounds.append(at)
    if at != end:
        raise NotSplit("a BYTES input is longer than its shape says")
    return bounds


def check_output(
    name: str,
    first: tuple[str, Sequence[int]],
    other: tuple[str, Sequence[int]],
    rows: int,
) -> None:
    """Check that an output of one part can stand behind that of the first part.

    Args:
        name: of the output.
        first: data type and shape in the answer to the first part.
        other: the same in the answer to this part.
        rows: of this part.

    Raises:
        NotMerged: it cannot.
    """
    if other[0] != first[0] or list(other[1][1:]) != list(first[1][1:]):
        raise NotMerged(f"output '{name}' differs in type or shape between parts")
    if not other[1] or other[1][0] != rows:
        raise NotMerged(f"output '{name}' has no batch dimension")


def check_size(name: str, datatype: str, shape: Sequence[int], size: int) -> None:
    """Check that the data of an output is as long as its shape says, where that tells.

    Raises:
        NotMerged: it is not.
    """
    element = SIZES.get(datatype)
    if element is not None and size != prod(shape) * element:
        raise NotMerged(f"output '{name}' is not as long as its shape says", is_of_model=False)
