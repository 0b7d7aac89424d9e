"""Compares two answers tensor by tensor. It needs numpy, so that only the process that compares
imports it."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lb.comparison.pairs import ComparedAnswer, Pair, Rules
from lb.comparison.tally import Example, OutputTally, Tally
from lb.kserve.payloads import (
    Json,
    binary_of,
    read_grpc_response,
    read_http,
    read_json,
    tensors_of,
)

_TYPES: Final = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
_LENGTH_SIZE: Final = 4
Array = NDArray[Any]


def compare(pair: Pair) -> Tally:
    """Compare the answers of a pair."""
    if _class_of(pair.first.status, is_grpc=pair.is_grpc) != _class_of(
        pair.second.status, is_grpc=pair.is_grpc
    ):
        why = f"status {pair.first.status} and {pair.second.status}"
        example = Example(pair.id, "", why, math.inf)
        return Tally(compared=1, status_differs=1, examples=[_told(example)])
    if not _is_good(pair.first.status, is_grpc=pair.is_grpc):
        return Tally(compared=1, same=1)
    try:
        first = _outputs(pair.first, is_grpc=pair.is_grpc)
        second = _outputs(pair.second, is_grpc=pair.is_grpc)
        outputs, examples = _compare_outputs(pair, first, second)
    except ValueError:
        return Tally(unreadable=1)
    is_same = not any(each.differing for each in outputs.values())
    worst = max(examples, key=lambda each: each.error, default=None)
    return Tally(
        compared=1,
        same=int(is_same),
        outputs=outputs,
        examples=[] if worst is None else [_told(worst)],
    )


def _told(example: Example) -> Example:
    """JSON has no infinity."""
    if not math.isfinite(example.error):
        example.error = sys.float_info.max
    return example


def _is_good(status: int, *, is_grpc: bool) -> bool:
    return not status if is_grpc else 200 <= status < 300


def _class_of(status: int, *, is_grpc: bool) -> int:
    """A status as clients tell them apart: each of gRPC's, and hundreds of HTTP's."""
    return status if is_grpc else status // 100


def _outputs(reply: ComparedAnswer, *, is_grpc: bool) -> dict[str, Json]:
    """The tensors of an answer by name.

    Raises:
        ValueError: it is none.
    """
    payload: object
    if is_grpc:
        payload = read_grpc_response(reply.body)
    elif reply.json_size < 0:
        payload = read_json(reply.body)
    else:
        payload = read_http(reply.body, reply.json_size, "outputs")
    if not isinstance(payload, dict):
        raise ValueError("no JSON object")
    return {str(each.get("name")): each for each in tensors_of(payload, "outputs")}


def _compare_outputs(
    pair: Pair, first: dict[str, Json], second: dict[str, Json]
) -> tuple[dict[str, OutputTally], list[Example]]:
    outputs: dict[str, OutputTally] = {}
    examples = []
    for name in sorted(first.keys() | second.keys()):
        one, other = first.get(name), second.get(name)
        if one is None or other is None or _form(one) != _form(other):
            outputs[name] = OutputTally(compared=1, differing=1, form_differs=1)
            why = f"{_described(one)} and {_described(other)}"
            examples.append(Example(pair.id, name, why, math.inf))
            continue
        tally = outputs[name] = _compare_values(one, other, pair.rules)
        if tally.differing:
            why = f"{tally.elements_outside} of {tally.elements} elements differ"
            examples.append(Example(pair.id, name, why, tally.max_abs))
    return outputs, examples


def _form(tensor: Json) -> tuple[str, list[int]]:
    shape = tensor.get("shape", [])
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ValueError("no shape")
    return str(tensor.get("datatype")), shape


def _is_size(dimension: object) -> bool:
    return type(dimension) is int and 0 <= dimension <= sys.maxsize


def _described(tensor: Json | None) -> str:
    if tensor is None:
        return "no such output"
    datatype, shape = _form(tensor)
    return f"{datatype} {shape}"


def _compare_values(one: Json, other: Json, rules: Rules) -> OutputTally:
    """Compare two tensors of the same type and shape.

    Raises:
        ValueError: one has no data, as with shared memory.
    """
    datatype, shape = _form(one)
    first, second = binary_of(one), binary_of(other)
    if datatype not in _FLOATS:
        return _compare_exactly(_elements(datatype, first), _elements(datatype, second))
    return _compare_floats(
        _floats(datatype, first).reshape(shape), _floats(datatype, second).reshape(shape), rules
    )


def _elements(datatype: str, raw: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, _type_of(datatype))
    found = []
    at = 0
    while at < len(raw):
        end = at + _LENGTH_SIZE
        at = end + int.from_bytes(raw[at:end], "little")
        found.append(raw[end:at])
    elements = np.empty(len(found), object)
    elements[:] = found
    return elements


def _type_of(datatype: str) -> str:
    try:
        return _TYPES[datatype]
    except KeyError as error:
        raise ValueError(f"unknown type {datatype}") from error


def _floats(datatype: str, raw: bytes) -> Array:
    """The values in double precision."""
    if datatype == "BF16":  # the upper half of FP32
        wide = np.frombuffer(raw, "<u2").astype("<u4") << np.uint32(16)
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(raw, _type_of(datatype)).astype(np.float64)


def _compare_exactly(first: Array, second: Array) -> OutputTally:
    if first.shape != second.shape:
        raise ValueError("data do not fit the shape")
    outside = int(np.count_nonzero(first != second))
    return OutputTally(
        compared=1,
        differing=int(outside > 0),
        elements=int(first.size),
        elements_outside=outside,
        decades={"0" if not outside else "different": 1},
    )


def _compare_floats(first: Array, second: Array, rules: Rules) -> OutputTally:
    nan = np.isnan(first) != np.isnan(second)
    equal = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.where(equal | nan, 0.0, np.abs(first - second))
        outside = nan | np.isinf(off) | (off > rules.atol + rules.rtol * np.abs(first))
        relative = np.where(off > 0, off / np.abs(first), 0.0)
    max_abs = _largest(off)
    count = int(np.count_nonzero(outside))
    tally = OutputTally(
        compared=1,
        differing=int(count > 0),
        elements=int(first.size),
        elements_outside=count,
        nan_differs=int(np.count_nonzero(nan)),
        max_abs=max_abs,
        max_rel=_largest(relative[np.isfinite(relative)]),
        min_cosine=_cosine(first, second),
        decades={_decade(max_abs): 1},
    )
    if first.ndim and first.shape[-1] > 1 and first.size:
        _rank(tally, first, second, rules.top_k)
    return tally


def _largest(values: Array) -> float:
    largest = float(values.max()) if values.size else 0.0
    return largest if math.isfinite(largest) else sys.float_info.max


def _decade(value: float) -> str:
    return "0" if value <= 0 else f"1e{math.floor(math.log10(value))}"


def _cosine(first: Array, second: Array) -> float | None:
    """The cosine of the angle between them; None where one has no direction."""
    with np.errstate(all="ignore"):
        a, b = first.ravel(), second.ravel()
        below = float(np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(b, b)))
        cosine = float(np.dot(a, b)) / below if below else math.nan
    return cosine if math.isfinite(cosine) else None


def _rank(tally: OutputTally, first: Array, second: Array, top_k: int) -> None:
    """Compare the places of the largest values of each row, along the last axis."""
    one = first.reshape(-1, first.shape[-1])
    other = second.reshape(one.shape)
    tally.ranked = 1
    tally.top_1_same = int(np.array_equal(one.argmax(axis=1), other.argmax(axis=1)))
    k = min(top_k, one.shape[1])
    best = [
        np.sort(np.argsort(-each, axis=1, kind="stable")[:, :k], axis=1) for each in (one, other)
    ]
    tally.top_k_same = int(np.array_equal(best[0], best[1]))
