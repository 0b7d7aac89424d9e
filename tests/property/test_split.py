"""Any batch that is cut and joined again says the same. Nothing that comes breaks the cutter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import SIZES
from lb.kserve.merge.steps import finish
from lb.kserve.split.bodies import join_bodies
from lb.kserve.split.messages import first_rows, join_messages
from lb.kserve.split.tensors import NotMerged, NotSplit
from tests.fakes.batches import (
    Tensor,
    answer_of,
    answered,
    body_of,
    message_of,
    read_body,
    read_message,
    request_of,
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Tensor], list[int]]:
    """Tensors of the same rows, of which the first has data, and the rows of their parts."""
    parts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda p: sum(p) > 1))
    rows = sum(parts)
    tensors = []
    for number in range(draw(st.integers(1, 3))):
        datatype = draw(st.sampled_from([*SIZES, "BYTES"]))
        rest = draw(st.lists(st.integers(0 if number else 1, 3), max_size=2))
        count = rows
        for dimension in rest:
            count *= dimension
        size = SIZES.get(datatype)
        element = st.binary(max_size=9) if size is None else st.binary(min_size=size, max_size=size)
        elements = draw(st.lists(element, min_size=count, max_size=count))
        tensors.append(Tensor(datatype, [rows, *rest], elements, f"INPUT{number}"))
    return tensors, parts


def places(parts: Sequence[int]) -> list[tuple[int, int]]:
    """First row and rows of each part."""
    return [(sum(parts[:at]), count) for at, count in enumerate(parts)]


@given(batches())
@settings(max_examples=100, deadline=None)
def test_messages_are_cut_and_joined(batch: tuple[list[Tensor], list[int]]) -> None:
    tensors, parts = batch
    request = request_of(tensors)
    message = request.SerializeToString()
    cut = read_message(message)
    assert first_rows(message, len(message)) == cut.rows == sum(parts)
    answers = []
    for first, count in places(parts):
        part = pb.ModelInferRequest.FromString(message_of(cut.part(first, count)))
        assert part == request_of([tensor.rows(first, count) for tensor in tensors])
        answers.append(answer_of(part).SerializeToString())
    joined, _ = finish(join_messages(answers, parts))
    assert message_of(joined) == answer_of(request).SerializeToString()


@given(batches())
@settings(max_examples=100, deadline=None)
def test_bodies_are_cut_and_joined(batch: tuple[list[Tensor], list[int]]) -> None:
    tensors, parts = batch
    json_size, body = body_of(tensors)
    cut = read_body(body, json_size)
    answers = [answered(cut.part(first, count)) for first, count in places(parts)]
    joined, _ = finish(join_bodies(answers, parts))
    assert (joined.json_size, b"".join(joined.pieces)) == answered(cut.part(0, cut.rows))


@given(batches(), st.data())
@settings(max_examples=150, deadline=None)
def test_spoilt_messages_are_refused_or_cut(
    batch: tuple[list[Tensor], list[int]], data: st.DataObject
) -> None:
    message = bytearray(request_of(batch[0]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(1, len(message))) :]
    first_rows(bytes(message), len(message))
    with suppress(NotSplit):
        cut = read_message(bytes(message))
        part = message_of(cut.part(0, cut.rows))
        assert read_message(part).rows == cut.rows
    with suppress(NotMerged):
        finish(join_messages([bytes(message), bytes(message)], [1, 1]))


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused(garbage: bytes) -> None:
    first_rows(garbage, len(garbage))
    with suppress(NotSplit):
        read_message(garbage)
    with suppress(NotMerged):
        finish(join_messages([garbage, garbage], [1, 1]))
    for json_size in (-1, 0, 5):
        with suppress(NotSplit):
            read_body(garbage, json_size)
        with suppress(NotMerged):
            finish(join_bodies([(json_size, garbage)] * 2, [1, 1]))


@given(batches(), st.data())
@settings(max_examples=150, deadline=None)
def test_spoilt_bodies_are_refused_or_cut(
    batch: tuple[list[Tensor], list[int]], data: st.DataObject
) -> None:
    json_size, text = body_of(batch[0])
    body = bytearray(text)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, json_size - 1))
        body[at] = data.draw(st.sampled_from(b'{}[]",:0123456789nulltruefalse'))
    with suppress(NotSplit):
        cut = read_body(bytes(body), json_size)
        part = cut.part(0, cut.rows)
        assert read_body(b"".join(part.pieces), part.json_size).rows == cut.rows
