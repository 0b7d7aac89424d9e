"""Two answers compared: what differs, by how much, and what counts as the same."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest

from lb.comparison.pairs import ComparedAnswer, Pair, Rules
from lb.comparison.tally import Tally
from lb.comparison.tensors import compare
from lb.kserve import inference_pb2 as pb

RULES = Rules(atol=1e-3, rtol=1e-2, top_k=2)


def http(outputs: list[dict[str, Any]], status: int = 200) -> ComparedAnswer:
    return ComparedAnswer(status=status, body=json.dumps({"outputs": outputs}).encode())


def floats(*values: float, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": "O", "datatype": "FP32", "shape": shape or [len(values)], "data": list(values)}


def compared(first: ComparedAnswer, second: ComparedAnswer, *, is_grpc: bool = False) -> Tally:
    return compare(
        Pair(
            shadow=0,
            name="n",
            is_noise=False,
            id="r1",
            is_grpc=is_grpc,
            rules=RULES,
            first=first,
            second=second,
        )
    )


def raw(datatype: str, shape: list[int], data: bytes) -> ComparedAnswer:
    message = pb.ModelInferResponse(model_name="any")
    message.outputs.add(name="O", datatype=datatype, shape=shape)
    message.raw_output_contents.append(data)
    return ComparedAnswer(status=0, body=message.SerializeToString())


def test_numbers_within_the_tolerance_are_the_same() -> None:
    tally = compared(http([floats(1.0, 100.0)]), http([floats(1.0005, 100.9)]))
    output = tally.outputs["O"]
    assert (tally.compared, tally.same, output.differing) == (1, 1, 0)
    assert output.max_abs == pytest.approx(0.9, rel=1e-4)
    assert output.decades == {"1e-1": 1}
    assert not tally.examples


def test_each_element_outside_is_counted_and_the_request_an_example() -> None:
    tally = compared(http([floats(1, 2, 3, 4)]), http([floats(1, 2.5, 3, 5)]))
    output = tally.outputs["O"]
    assert (tally.same, output.differing, output.elements, output.elements_outside) == (0, 1, 4, 2)
    assert (output.max_abs, output.max_rel) == (1.0, 0.25)
    assert [(each.id, each.output, each.error) for each in tally.examples] == [("r1", "O", 1.0)]


def test_ranks_are_compared_row_by_row() -> None:
    shape = [2, 3]
    first = http([floats(1, 2, 3, 3, 2, 1, shape=shape)])
    same_top_2 = compared(first, http([floats(1, 3, 2, 3, 2, 1, shape=shape)])).outputs["O"]
    other = compared(first, http([floats(3, 2, 1, 3, 2, 1, shape=shape)])).outputs["O"]
    assert (same_top_2.ranked, same_top_2.top_1_same, same_top_2.top_k_same) == (1, 0, 1)
    assert (other.ranked, other.top_1_same, other.top_k_same) == (1, 0, 0)


def test_nan_is_nan_and_nothing_else() -> None:
    nan, one = struct.pack("<2f", math.nan, 1), struct.pack("<2f", 1, 1)
    same = compared(raw("FP32", [2], nan), raw("FP32", [2], nan), is_grpc=True)
    other = compared(raw("FP32", [2], nan), raw("FP32", [2], one), is_grpc=True)
    assert same.same == 1
    assert (other.same, other.outputs["O"].nan_differs) == (0, 1)


def test_infinity_is_a_finite_figure_in_json() -> None:
    tally = compared(
        raw("FP64", [1], struct.pack("<d", math.inf)),
        raw("FP64", [1], struct.pack("<d", 1)),
        is_grpc=True,
    )
    json.dumps(tally.as_json(), allow_nan=False)
    assert tally.same == 0


@pytest.mark.parametrize(
    ("datatype", "first", "second"),
    [
        ("FP16", struct.pack("<2e", 1, 2), struct.pack("<2e", 1, 3)),
        ("BF16", b"\x80\x3f\x00\x40", b"\x80\x3f\x40\x40"),
        ("INT64", struct.pack("<2q", 1, 2), struct.pack("<2q", 1, 3)),
        ("UINT8", b"\1\2", b"\1\3"),
        ("BOOL", b"\1\0", b"\1\1"),
        ("BYTES", b"\1\0\0\0a\1\0\0\0b", b"\1\0\0\0a\2\0\0\0bc"),
    ],
)
def test_every_type_is_compared(datatype: str, first: bytes, second: bytes) -> None:
    same = compared(raw(datatype, [2], first), raw(datatype, [2], first), is_grpc=True)
    other = compared(raw(datatype, [2], first), raw(datatype, [2], second), is_grpc=True)
    assert (same.same, same.outputs["O"].elements) == (1, 2)
    assert (other.same, other.outputs["O"].elements_outside) == (0, 1)


def test_binary_tensors_over_http_are_read() -> None:
    data = struct.pack("<2f", 1, 2)
    head = {"outputs": [{**floats(0, 0), "parameters": {"binary_data_size": 8}}]}
    del head["outputs"][0]["data"]
    text = json.dumps(head).encode()
    reply = ComparedAnswer(status=200, body=text + data, json_size=len(text))
    assert compared(reply, http([floats(1, 2)])).same == 1


@pytest.mark.parametrize(
    "second",
    [
        [],
        [floats(1, 2, shape=[2, 1])],
        [{**floats(1, 2), "datatype": "FP64"}],
        [floats(1, 2), {**floats(1, 2), "name": "MORE"}],
    ],
    ids=["no output", "another shape", "another type", "one more"],
)
def test_another_form_differs(second: list[dict[str, Any]]) -> None:
    tally = compared(http([floats(1, 2)]), http(second))
    assert (tally.compared, tally.same) == (1, 0)
    assert sum(each.form_differs for each in tally.outputs.values()) == 1


def test_statuses_are_compared_by_class() -> None:
    good, bad, worse = (http([], status) for status in (200, 400, 500))
    assert compared(bad, http([], 404)).same == 1
    assert compared(good, worse).status_differs == 1
    assert compared(bad, worse).status_differs == 1


def _output(data: str, shape: str = "[1]", datatype: str = "FP32") -> bytes:
    text = f'{{"name":"O","datatype":"{datatype}","shape":{shape},"data":{data}}}'
    return f'{{"outputs":[{text}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'{"outputs":[{"name":"O"}]}', b"\xff", _output("[3.5e38]"),
        _output("[1]", "null"), _output("[1]", "[1e30]"), _output("[1]", f"[{10**30}]"),
        _output("[1]", '["1"]'), _output("[" * 2000 + "1" + "]" * 2000),
        _output("[1]", datatype="BYTES"), b'{"outputs":[{"name":"O","data_base64":5}]}',
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_counted_and_differs_from_nothing(body: bytes) -> None:
    reply = ComparedAnswer(status=200, body=body)
    assert compared(reply, reply) == Tally(unreadable=1)


def test_tallies_add_up_and_cross_the_process_boundary() -> None:
    total = Tally()
    for value in (1.0, 1.5, 9.0):
        each = compared(http([floats(1.0, 2.0)]), http([floats(value, 2.0)]))
        total.add(Tally.from_json(json.loads(json.dumps(each.as_json(), allow_nan=False))))
    output = total.outputs["O"]
    assert (total.compared, total.same, output.differing) == (3, 1, 2)
    assert (output.max_abs, output.decades) == (8.0, {"0": 1, "1e-1": 1, "1e0": 1})
    assert [each.error for each in total.examples] == [8.0, 0.5]
