"""Long JSON answers, read in steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.kserve.merge.steps import STEP_BYTES, finish
from lb.kserve.split.bodies import ALL_JSON, join_bodies
from lb.kserve.split.elements import cut_elements
from lb.kserve.split.tensors import MAX_PARSED, NotMerged
from tests.fakes.batches import compact


def answer(rows: int, data: list[Any], datatype: str = "FP32", **more: Any) -> bytes:
    output = {"name": "O", "datatype": datatype, "shape": [rows, len(data) // rows], "data": data}
    return compact({"model_name": "m", "model_version": "1", "outputs": [output], **more})


def joined(*answers: bytes, rows: int = 4) -> tuple[bytes, int]:
    """The answer to all parts, and the steps that it took."""
    work = join_bodies([(ALL_JSON, each) for each in answers], [rows] * len(answers))
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return b"".join(stop.value[0].pieces), steps
        steps += 1


@pytest.mark.parametrize(
    "data",
    [
        [number / 7 for number in range(40_000)],
        [f'text {number}, "quoted", [bracket] \\ ünïcode' for number in range(8000)],
        [None, True, False, "", '"data":[1,2]', 1e-30] * 8000,
    ],
)
def test_a_long_answer_is_joined_in_steps_and_says_what_a_short_one_would(data: list[Any]) -> None:
    one = answer(4, data, parameters={"n": 1})
    assert len(one) > 10 * STEP_BYTES
    got, steps = joined(one, one)
    assert got == answer(4, data, parameters={"n": 1}).replace(
        compact(data)[1:-1], compact(data + data)[1:-1]
    ).replace(b'"shape":[4,', b'"shape":[8,')
    assert steps >= 2 * len(one) // (2 * STEP_BYTES)


def test_a_long_answer_may_be_joined_with_a_short_one() -> None:
    long, short = answer(4, [1.5] * 40_000), answer(1, [2.5] * 10_000)
    work = join_bodies([(ALL_JSON, long), (ALL_JSON, short)], [4, 1])
    body, _ = finish(work)
    (output,) = json.loads(b"".join(body.pieces))["outputs"]
    assert output["shape"] == [5, 10_000]
    assert output["data"] == [1.5] * 40_000 + [2.5] * 10_000


def test_nested_elements_of_a_middling_answer_are_joined_too() -> None:
    nested = answer(4, [0] * 40_000).replace(b'"data":[0,', b'"data":[[0],', 1)
    assert len(nested) < MAX_PARSED
    got, _ = joined(nested, nested)
    assert len(json.loads(got)["outputs"][0]["data"]) == 80_000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-100],
        lambda text: text.replace(b"[0,", b"[0,,", 1),
        lambda text: text.replace(b"0]}", b"0,]}"),
        lambda text: text.replace(b"[0,", b"[01,", 1),
        lambda text: text.replace(b"[0,", b'["' + b"x" * MAX_PARSED + b'",', 1),
        lambda text: text.replace(b"[0,", b"[[0,", 1),
        lambda text: text.replace(b"[0,", b"[0],", 1),
        lambda text: text.replace(b"[0,", b"[0[0],", 1),
        lambda text: text.replace(b"[0,", b"[[],0,", 1),
        lambda text: text.replace(b'"outputs"', b'"parameters":{"data":[1]},"outputs"'),
        lambda text: text.replace(b'"outputs"', b'"more":"%b","outputs"' % (b"x" * MAX_PARSED)),
        lambda text: text.replace(b"0]}", b"0,0]}"),
    ],
)
def test_a_long_answer_that_is_none_is_refused(spoil: Any) -> None:
    good = answer(4, [0] * 400_000)
    bad = spoil(good)
    assert bad != good
    with pytest.raises(NotMerged):
        joined(good, bad)


_VALUES = st.one_of(
    st.integers(), st.floats(), st.text(), st.booleans(), st.none(), st.just("\\u0041")
)


@given(st.lists(_VALUES), st.sampled_from([None, 1]), st.booleans())
def test_elements_are_cut_as_json_reads_them(
    data: list[Any], indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps({"x": "data", "data": data, "y": 1}, indent=indent, ensure_ascii=is_ascii)
    skeleton = finish(cut_elements(text.encode("utf-8", "surrogatepass")))
    assert json.loads(skeleton.text) == {"x": "data", "data": 0, "y": 1}
    (elements,) = skeleton.elements
    assert elements.size == len(data)
    again = json.loads(b"[%b]" % elements.text)
    assert repr(again) == repr(json.loads(json.dumps(data)))


_NESTED = st.recursive(_VALUES, lambda inner: st.lists(inner, min_size=1), max_leaves=20)


@given(st.lists(_NESTED), st.sampled_from([None, 1]), st.data())
def test_items_are_cut_as_json_reads_them(
    data: list[Any], indent: int | None, choice: st.DataObject
) -> None:
    text = json.dumps({"data": data, "y": [1]}, indent=indent).encode()
    skeleton = finish(cut_elements(text, by_item=True))
    assert json.loads(skeleton.text) == {"data": 0, "y": [1]}
    (elements,) = skeleton.elements
    sizes = [_size(each) for each in data]
    assert elements.size == sum(sizes)
    assert elements.each == (sizes[0] if len(set(sizes)) == 1 else 0)
    first = choice.draw(st.integers(0, len(data)))
    count = choice.draw(st.integers(0, len(data) - first))
    found = json.loads(b"[%b]" % elements.items(first, count))
    assert repr(found) == repr(data[first : first + count])


_MANY: dict[str, list[Any]] = {
    "rows of one": [[number] for number in range(20_000)],
    "rows of three": [[number, -0.5, 1e30] for number in range(8000)],
    "rows that differ": [[1] * (1 + number % 3) for number in range(8000)],
    "rows of texts": [[f'{number}]],["', None] for number in range(4000)],
    "images": [[[[number, 2, 3]] * 4] * 5 for number in range(200)],
    "rows longer than a step": [[number] * 10_000 for number in range(8)],
    "rows in which a text seems to end them": [["]", *range(3000)] for _ in range(8)],
    "elements after lists": [*[[1]] * 5000, *range(5000), *[[2]] * 5000],
    "very deep": [[[[[[[number]]]]]] for number in range(500)],
}


@pytest.mark.parametrize("data", _MANY.values(), ids=_MANY)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("comma", [",", ", ", " , "])
def test_many_items_are_cut_as_json_reads_them(
    data: list[Any], indent: int | None, comma: str
) -> None:
    text = json.dumps({"data": data, "y": [1]}, indent=indent, separators=(comma, ":")).encode()
    (elements,) = finish(cut_elements(text, by_item=True)).elements
    sizes = [_size(each) for each in data]
    assert elements.size == sum(sizes)
    assert elements.each == (sizes[0] if len(set(sizes)) == 1 else 0)
    assert len(elements.ends) == len(data)
    middle = len(data) // 2
    for first, size in ((0, 1), (1, middle), (middle, len(data) - middle)):
        assert json.loads(b"[%b]" % elements.items(first, size)) == data[first : first + size]


def test_lists_are_not_read_one_by_one() -> None:
    """One by one, lists of one element took eight times as long as now."""
    text = json.dumps({"data": [[number % 10] for number in range(100_000)]}).encode()
    steps = 0
    work = cut_elements(text, by_item=True)
    while True:
        try:
            next(work)
        except StopIteration:
            break
        steps += 1
    assert steps <= 2 * 4 * len(text) // STEP_BYTES


def _size(value: Any) -> int:
    return sum(map(_size, value)) if isinstance(value, list) else 1
