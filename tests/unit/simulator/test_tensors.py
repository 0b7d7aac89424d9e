from __future__ import annotations

import struct

import pytest

from lb.kserve.datatypes import FORMATS
from lb.simulator.tensors import (
    Tensor,
    Value,
    element_count,
    element_size,
    is_datatype,
    make_tensor,
    pack,
    unpack,
)


@pytest.mark.parametrize("datatype", FORMATS)
def test_fixed_size_elements_survive_the_binary_form(datatype: str) -> None:
    values: list[Value] = [True, False] if datatype == "BOOL" else [0, 1, 7]
    data = pack(datatype, values)
    assert unpack(datatype, data) == values
    assert len(data) == len(values) * (element_size(datatype) or 0)


def test_bytes_elements_carry_their_length() -> None:
    assert pack("BYTES", [b"a", b"", b"bc"]) == b"\1\0\0\0a\0\0\0\0\2\0\0\0bc"
    assert unpack("BYTES", b"\1\0\0\0a\0\0\0\0\2\0\0\0bc") == [b"a", b"", b"bc"]
    assert element_size("BYTES") is None


def test_integers_are_little_endian() -> None:
    assert pack("INT32", [1, -1]) == b"\1\0\0\0\xff\xff\xff\xff"


@pytest.mark.parametrize("data", [b"\1\0", b"\5\0\0\0abc"], ids=["no length", "short"])
def test_broken_bytes_tensor_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="BYTES element"):
        unpack("BYTES", data)


def test_broken_fixed_size_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="1 bytes after"):
        unpack("INT32", b"\0" * 5)


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 300), ("UINT8", -1), ("BYTES", 1)])
def test_value_that_does_not_fit_is_refused(datatype: str, value: int) -> None:
    with pytest.raises(struct.error):
        pack(datatype, [value])


def test_shape_of_nothing_is_a_scalar() -> None:
    assert (element_count(()), element_count((2, 3)), element_count((2, 0))) == (1, 6, 0)


def test_made_tensor_is_one_dimensional() -> None:
    assert make_tensor("T", "UINT8", [1, 2]) == Tensor("T", "UINT8", (2,), b"\1\2")
    assert make_tensor("T", "UINT8", [1, 2]).values == [1, 2]


def test_known_datatypes() -> None:
    assert is_datatype("BYTES")
    assert is_datatype("FP32")
    assert not is_datatype("FP31")
