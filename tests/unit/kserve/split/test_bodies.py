"""Batches of HTTP, cut by rows and joined."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve.datatypes import SIZES
from lb.kserve.merge.steps import STEP_BYTES, finish
from lb.kserve.split.bodies import ALL_JSON, cut_body, join_bodies
from lb.kserve.split.tensors import NotMerged, NotSplit
from tests.fakes.batches import answered, body_of, compact, counted, read_body
from tests.fakes.work import instructions


@pytest.mark.parametrize("datatype", [*SIZES, "BYTES"])
def test_binary_data_is_cut_and_joined(datatype: str) -> None:
    tensors = [counted(datatype, [5, 2]), counted("BYTES", [5], "INPUT1")]
    json_size, body = body_of(tensors, parameters={"priority": 3})
    cut = read_body(body, json_size)
    assert cut.rows == 5
    part = cut.part(2, 2)
    wanted = body_of([tensor.rows(2, 2) for tensor in tensors], parameters={"priority": 3})
    whole = b"".join(part.pieces)
    assert json.loads(whole[: part.json_size]) == json.loads(wanted[1][: wanted[0]])
    assert whole[part.json_size :] == wanted[1][wanted[0] :]
    answers = [answered(cut.part(first, count)) for first, count in ((0, 2), (2, 2), (4, 1))]
    joined, version = finish(join_bodies(answers, [2, 2, 1]))
    unsplit = answered(cut.part(0, 5))
    assert (joined.json_size, b"".join(joined.pieces)) == unsplit
    assert version == "1"


@pytest.mark.parametrize(
    "data",
    [[1, 2, 3, 4, 5, 6], [[1, 2], [3, 4], [5, 6]], [[[1], [2]], [[3], [4]], [[5], [6]]]],
)
def test_json_data_is_cut_flat_and_nested(data: list[Any]) -> None:
    tensor = {"name": "INPUT0", "shape": [3, 2], "datatype": "INT32", "data": data}
    cut = read_body(compact({"inputs": [tensor]}), ALL_JSON)
    part = cut.part(1, 2)
    assert part.json_size == ALL_JSON
    [found] = json.loads(b"".join(part.pieces))["inputs"]
    assert found["shape"] == [2, 2]
    assert found["data"] == (data[2:] if len(data) == 6 else data[1:])


def test_numbers_keep_their_digits() -> None:
    body = (
        b'{"inputs":[{"name":"A","shape":[3],"datatype":"FP64",'
        b'"data":[1.10,1E-7,123456789012345678901234567890]}]}'
    )
    cut = read_body(body, ALL_JSON)
    assert b'"data":[1.10,1E-7]' in b"".join(cut.part(0, 2).pieces)
    assert b'"data":[123456789012345678901234567890]' in b"".join(cut.part(2, 1).pieces)


@pytest.mark.parametrize(
    "data",
    [[""] * 64_000, [[""] * 1000] * 64, [[["]"]] * 1000] * 64],
)
def test_a_long_batch_is_read_in_steps_of_little_work_each(data: list[Any]) -> None:
    tensor = {"name": "INPUT0", "shape": [64, 1000], "datatype": "BYTES", "data": data}
    body = compact({"inputs": [tensor]})
    work = cut_body(body, ALL_JSON)
    costs = []
    cut = None
    while cut is None:

        def step() -> None:
            nonlocal cut
            try:
                next(work)
            except StopIteration as stop:
                cut = stop.value

        costs.append(instructions(step))
    assert len(costs) > len(body) // STEP_BYTES
    assert max(costs) < 100_000  # a millisecond
    [found] = json.loads(b"".join(cut.part(63, 1).pieces))["inputs"]
    assert found == {**tensor, "shape": [1, 1000], "data": data[-len(data) // 64 :]}


def test_rows_of_long_binary_texts_are_found_in_steps() -> None:
    json_size, body = body_of([counted("BYTES", [64, 1000])])
    steps = sum(1 for _ in cut_body(body, json_size))
    assert steps > 64_000 // 4096


def test_text_keeps_what_it_says() -> None:
    texts = ['a"\\', "ünï", "\ud800", "\n"]
    body = json.dumps({"inputs": [{"name": "A", "shape": [4], "datatype": "BYTES", "data": texts}]})
    part = read_body(body.encode(), ALL_JSON).part(0, 4)
    assert json.loads(b"".join(part.pieces))["inputs"][0]["data"] == texts


def test_binary_and_json_inputs_may_be_mixed() -> None:
    json_size, body = body_of([counted("INT32", [4, 2])])
    content = json.loads(body[:json_size])
    content["inputs"].insert(
        0, {"name": "J", "shape": [4], "datatype": "INT32", "data": [1, 2, 3, 4]}
    )
    head = compact(content)
    part = read_body(head + body[json_size:], len(head)).part(2, 2)
    whole = b"".join(part.pieces)
    found = json.loads(whole[: part.json_size])
    assert found["inputs"][0]["data"] == [3, 4]
    assert whole[part.json_size :] == counted("INT32", [4, 2]).rows(2, 2).raw


def test_inputs_in_shared_memory_are_cut_by_offset() -> None:
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 320}
    tensor = {"name": "A", "shape": [8, 10], "datatype": "FP32", "parameters": parameters}
    part = read_body(compact({"inputs": [tensor]}), ALL_JSON).part(2, 3)
    assert json.loads(b"".join(part.pieces))["inputs"][0]["parameters"] == {
        "shared_memory_region": "r",
        "shared_memory_offset": 80,
        "shared_memory_byte_size": 120,
    }


def _input(**changes: Any) -> dict[str, Any]:
    return {"name": "A", "shape": [4], "datatype": "INT32", "data": [1, 2, 3, 4], **changes}


_IN_MEMORY = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
_OFFSETS = [1.5, "x", None, 1e30, -1, 2**63 - 16]


def _in_memory(**parameters: Any) -> dict[str, Any]:
    return {
        "name": "A", "shape": [4], "datatype": "INT32", "parameters": {**_IN_MEMORY, **parameters},
    }  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": [_input(shape=[1, 4])]},
        {"inputs": [_input(), _input(name="B", shape=[2, 2])]},
        {"inputs": [_input()], "parameters": {"sequence_id": 5}},
        {"inputs": [_input()], "parameters": {"sequence_start": True}},
        {"inputs": [_input()], "outputs": [{"name": "O", "parameters": _IN_MEMORY}]},
        {"inputs": [_input(datatype="BYTES", parameters=_IN_MEMORY)]},
        *({"inputs": [_in_memory(shared_memory_offset=offset)]} for offset in _OFFSETS),
        {"inputs": [_input(data=[1, 2, 3])]},
        {"inputs": [_input(data=[[1, 2], [3, 4]])]},
        {"inputs": [_input(shape=[2, 2], data=[[1], [2, 3, 4]])]},
        {"inputs": [_input(data={"a": 1})]},
        {"inputs": [_input(shape=[])]},
        {"inputs": [_input(shape=[-1])]},
        {"inputs": [_input(shape=[8000, 0], data=[])]},
        {"inputs": [{"name": "A"}]},
        {"inputs": []},
        {"inputs": {"name": "A"}},
        {},
        [],
        {"inputs": [_input(parameters={"binary_data_size": 16})]},
        {"inputs": [_input(parameters=_IN_MEMORY)]},
        {"inputs": [_input(shape=[4] + [1] * 64)]},
        {"inputs": [_input()], "parameters": {"data": [1]}},
        {"inputs": [_input(name=f"INPUT{number}") for number in range(1000)]},
    ],
)
def test_requests_that_are_not_cut(content: Any) -> None:
    with pytest.raises(NotSplit):
        read_body(compact(content), ALL_JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 5000,
        b'{"inputs":[],"inputs":[]}',
        b'{"inputs":[{"name":"A","name":"B","shape":[2],"datatype":"INT8","data":[1,2]}]}',
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"INT8","data":[1,2]}],"parameters":{"z":'
        + b"[" * 700
        + b"]" * 700
        + b"}}",
    ],
)
def test_what_is_no_inference_is_not_cut(body: bytes) -> None:
    with pytest.raises(NotSplit):
        read_body(body, ALL_JSON)


def test_a_raw_binary_request_is_not_cut() -> None:
    with pytest.raises(NotSplit, match="has one row"):
        read_body(b"abcd", 0)


def test_binary_data_that_is_longer_or_shorter_is_not_cut() -> None:
    json_size, body = body_of([counted("INT32", [4, 2])])
    for spoilt in (body[:-1], body + b"x"):
        with pytest.raises(NotSplit):
            read_body(spoilt, json_size)


def _answer(**changes: Any) -> bytes:
    output = {"name": "O", "datatype": "INT32", "shape": [2], "data": [1, 2], **changes}
    return compact({"model_name": "m", "model_version": "1", "outputs": [output]})


@pytest.mark.parametrize(
    "other",
    [
        _answer(shape=[1]), _answer(shape=[]), _answer(datatype="INT64"), _answer(name="P"),
        _answer(shape=[2, 1]), _answer(data=[1]), b"{}", b"x", _answer().replace(b'"1"', b'"2"'),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_joined(other: bytes) -> None:
    with pytest.raises(NotMerged):
        finish(join_bodies([(ALL_JSON, _answer()), (ALL_JSON, other)], [2, 2]))


def test_answers_that_cannot_be_written_again_are_not_joined() -> None:
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    with pytest.raises(NotMerged):
        finish(join_bodies([(ALL_JSON, _answer(parameters={"z": deep}))], [2]))


@pytest.mark.parametrize("place", [0, 1])
def test_answers_whose_parameters_are_no_object_cannot_be_joined(place: int) -> None:
    answers = [json.loads(_answer(parameters={})) for _ in range(2)]
    for answer in answers:
        answer["parameters"] = {}
    for holder in (answers[place], answers[place]["outputs"][0]):
        holder["parameters"] = None
        bodies = [(ALL_JSON, compact(answer)) for answer in answers]
        with pytest.raises(NotMerged):
            finish(join_bodies(bodies, [2, 2]))
        holder["parameters"] = {}


def test_json_answers_are_joined() -> None:
    joined, _ = finish(join_bodies([(ALL_JSON, _answer()), (ALL_JSON, _answer())], [2, 2]))
    assert b"".join(joined.pieces) == _answer(shape=[4], data=[1, 2, 1, 2])


def test_the_answer_to_each_part_is_a_step() -> None:
    work = join_bodies([(ALL_JSON, _answer()), (ALL_JSON, b"{"), (ALL_JSON, _answer())], [2, 2, 2])
    next(work)
    with pytest.raises(NotMerged, match="no inference response"):
        next(work)


def test_joining_very_many_outputs_takes_time_in_proportion() -> None:
    def work(count: int) -> int:
        names = [f"OUT{number}" for number in range(count)]
        outputs = [{"name": n, "datatype": "INT32", "shape": [1], "data": [1]} for n in names]
        answer = compact({"model_name": "m", "model_version": "1", "outputs": outputs})
        return instructions(lambda: finish(join_bodies([(ALL_JSON, answer)] * 3, [1, 1, 1])))

    assert work(1600) < 5 * work(400)
