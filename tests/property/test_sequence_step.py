"""Steps are read from the wire as full decoders read them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.json_parameters import ParametersScan
from lb.kserve.sequence import http_step, json_step
from tests.fakes.steps import Incomplete, grpc_step
from tests.reference import sequence as reference

MODEL = b"m"
NAMES = st.sampled_from(["sequence_id", "sequence_start", "sequence_end", "sequence", "x"])
GRPC_VALUES = (
    st.booleans().map(lambda value: ("bool_param", value))
    | st.integers(-(2**63), 2**63 - 1).map(lambda value: ("int64_param", value))
    | st.text(max_size=140).map(lambda value: ("string_param", value))
    | st.floats().map(lambda value: ("double_param", value))
    | st.integers(0, 2**64 - 1).map(lambda value: ("uint64_param", value))
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    request = pb.ModelInferRequest(
        model_name=draw(st.text(max_size=10)),
        id=draw(st.text(max_size=5)),
        raw_input_contents=draw(st.lists(st.binary(max_size=50), max_size=3)),
    )
    for name in draw(st.lists(st.text(max_size=5), max_size=2)):
        request.inputs.add(name=name, shape=[1]).parameters["sequence_id"].int64_param = 5
    for name, (kind, value) in draw(st.dictionaries(NAMES, GRPC_VALUES, max_size=4)).items():
        setattr(request.parameters[name], kind, value)
    return request.SerializeToString()


@given(st.lists(requests(), min_size=1, max_size=3).map(b"".join))
def test_grpc_agrees_with_protobuf(message: bytes) -> None:
    # Messages one after the other are one: fields repeat, in any order.
    assert grpc_step(message, MODEL) == reference.grpc_step(message, MODEL)
    assert grpc_step(memoryview(message), MODEL) == reference.grpc_step(message, MODEL)


@given(requests(), st.data())
def test_a_part_says_what_the_whole_says_or_that_it_is_too_short(
    message: bytes, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(message)))
    try:
        found = grpc_step(message[:size], MODEL, len(message))
    except Incomplete:
        assert size < len(message)
    else:
        assert found == reference.grpc_step(message, MODEL)


KEYS = st.sampled_from(["parameters", "inputs", "id", "sequence_id", "sequence_start", '"', "\\"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | KEYS
    | st.text(max_size=5)
    | st.text('"\\{}[]:,parmets ', max_size=20)
)
PARAMETERS = st.dictionaries(NAMES, LEAVES, max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner | PARAMETERS, max_size=4)
        | PARAMETERS
    ),
    max_leaves=12,
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(KEYS, VALUES | PARAMETERS), max_size=6))
    space = draw(st.sampled_from(["", " ", "\n\t "]))
    text = ",".join(
        f"{space}{json.dumps(key)}{space}:{space}{json.dumps(value)}{space}"
        for key, value in members
    )
    return f"{space}{{{text}}}{space}".encode()


def scanned(pieces: list[bytes]) -> dict[str, Any]:
    scan = ParametersScan()
    for piece in pieces:
        if scan.feed(piece):
            break
    return scan.parameters


@given(documents(), st.lists(st.integers(0, 300), max_size=12))
def test_json_agrees_with_a_parser_however_it_comes(text: bytes, cuts: list[int]) -> None:
    wanted = reference.http_step(text, MODEL)
    assert http_step(text, MODEL) == wanted
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert json_step(scanned(pieces), MODEL) == wanted
    assert json_step(scanned([text[at : at + 1] for at in range(len(text))]), MODEL) == wanted


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_raise_anything_but_that_they_are_too_few(data: bytes, more: int) -> None:
    http_step(data, MODEL)
    try:
        grpc_step(data, MODEL, len(data) + more)
    except Incomplete:
        assert more
