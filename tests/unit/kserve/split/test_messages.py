"""Batches of gRPC, cut by rows and joined."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import SIZES
from lb.kserve.merge.steps import finish
from lb.kserve.split.messages import cut_message, first_rows, join_messages
from lb.kserve.split.tensors import NotMerged, NotSplit
from lb.wire.rope import Rope
from tests.fakes.batches import TYPED, answer_of, counted, message_of, read_message, request_of
from tests.fakes.work import instructions

RAW_TYPES = [*SIZES, "BYTES"]
CUTS = 30
"""Batches that are held at once."""
SLACK = 8 * 2**20
"""Bytes that the process may take for something else."""


@pytest.mark.parametrize("datatype", RAW_TYPES)
def test_raw_contents_are_cut_by_rows(datatype: str) -> None:
    tensors = [counted(datatype, [5, 2, 3]), counted("INT32", [5], "INPUT1")]
    request = request_of(tensors, priority=3)
    cut = read_message(request.SerializeToString())
    assert cut.rows == 5
    part = pb.ModelInferRequest.FromString(message_of(cut.part(2, 2)))
    wanted = request_of([tensor.rows(2, 2) for tensor in tensors], priority=3)
    assert part == wanted


def test_raw_contents_are_not_copied() -> None:
    message = request_of([counted("FP32", [4, 100])]).SerializeToString()
    pieces = read_message(message).part(1, 2)
    assert [piece.obj is message for piece in pieces if isinstance(piece, memoryview)] == [True]


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_messages_that_came_in_pieces_are_cut(datatype: str, size: int) -> None:
    request = request_of([counted(datatype, [6, 5]), counted("INT64", [6], "INPUT1")])
    message = request.SerializeToString()
    rope = Rope(message[at : at + size] for at in range(0, len(message), size))
    for first, count in ((0, 2), (2, 3), (5, 1)):
        whole = message_of(read_message(message).part(first, count))
        assert message_of(read_message(rope).part(first, count)) == whole


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_cut_by_rows(datatype: str) -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="A", datatype=datatype, shape=[4, 2])
    values = [b"a", b"", b"c", b"d", b"e", b"f", b"g", b"h"]
    numbers = [False, True] * 4 if datatype == "BOOL" else [*range(8)]
    getattr(tensor.contents, TYPED[datatype]).extend(values if datatype == "BYTES" else numbers)
    cut = read_message(request.SerializeToString())
    part = pb.ModelInferRequest.FromString(message_of(cut.part(1, 2)))
    assert list(part.inputs[0].shape) == [2, 2]
    wanted = (values if datatype == "BYTES" else numbers)[2:6]
    assert list(getattr(part.inputs[0].contents, TYPED[datatype])) == wanted


def test_inputs_in_shared_memory_are_cut_by_offset() -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="A", datatype="FP32", shape=[8, 10])
    tensor.parameters["shared_memory_region"].string_param = "region"
    tensor.parameters["shared_memory_offset"].int64_param = 100
    tensor.parameters["shared_memory_byte_size"].int64_param = 320
    cut = read_message(request.SerializeToString())
    part = pb.ModelInferRequest.FromString(message_of(cut.part(2, 3))).inputs[0]
    assert list(part.shape) == [3, 10]
    assert part.parameters["shared_memory_region"].string_param == "region"
    assert part.parameters["shared_memory_offset"].int64_param == 180
    assert part.parameters["shared_memory_byte_size"].int64_param == 120


def _one_row(request: pb.ModelInferRequest) -> None:
    request.inputs[0].shape[0] = 1


def _differ(request: pb.ModelInferRequest) -> None:
    request.inputs.add(name="B", datatype="INT32", shape=[3])
    request.raw_input_contents.append(bytes(12))


def _sequence(request: pb.ModelInferRequest) -> None:
    request.parameters["sequence_id"].int64_param = 5


def _sequence_by_name(request: pb.ModelInferRequest) -> None:
    request.parameters["sequence_id"].string_param = "five"


def _sequence_end(request: pb.ModelInferRequest) -> None:
    request.parameters["sequence_end"].bool_param = True


def _output_in_memory(request: pb.ModelInferRequest) -> None:
    output = request.outputs.add(name="OUTPUT0")
    output.parameters["shared_memory_region"].string_param = "region"


def _bytes_in_memory(request: pb.ModelInferRequest) -> None:
    request.inputs[0].datatype = "BYTES"
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    del request.raw_input_contents[:]


def _wrong_size_in_memory(request: pb.ModelInferRequest) -> None:
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    del request.raw_input_contents[:]


def _also_in_memory(request: pb.ModelInferRequest) -> None:
    request.inputs[0].datatype = "FP16"
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 16
    request.inputs[0].contents.SetInParent()
    del request.raw_input_contents[:]


def _offset(**value: object) -> Callable[[pb.ModelInferRequest], None]:
    def spoil(request: pb.ModelInferRequest) -> None:
        parameters = request.inputs[0].parameters
        parameters["shared_memory_region"].string_param = "region"
        parameters["shared_memory_byte_size"].int64_param = 32
        for name, number in value.items():
            setattr(parameters["shared_memory_offset"], name, number)
        del request.raw_input_contents[:]

    return spoil


def _short(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][:-1]


def _extra(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents.append(b"")


def _missing(request: pb.ModelInferRequest) -> None:
    request.inputs.add(name="B", datatype="INT32", shape=[4])


def _mixed(request: pb.ModelInferRequest) -> None:
    request.inputs[0].contents.int_contents.append(1)


def _unknown_type(request: pb.ModelInferRequest) -> None:
    request.inputs[0].datatype = "FP8"


def _no_shape(request: pb.ModelInferRequest) -> None:
    del request.inputs[0].shape[:]


def _negative(request: pb.ModelInferRequest) -> None:
    request.inputs[0].shape[1] = -2


def _no_inputs(request: pb.ModelInferRequest) -> None:
    del request.inputs[:]
    del request.raw_input_contents[:]


def _empty_rows(request: pb.ModelInferRequest) -> None:
    request.inputs[0].shape[1] = 0
    request.raw_input_contents[0] = b""


def _many_raw(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents.extend([b""] * 4000)


def _many_parameters(request: pb.ModelInferRequest) -> None:
    for number in range(4000):
        request.inputs[0].parameters[str(number)].bool_param = True


def _half_a_type(request: pb.ModelInferRequest) -> None:
    request.inputs[0].datatype = "FP16"
    request.inputs[0].contents.int_contents.extend(range(8))
    del request.raw_input_contents[:]


@pytest.mark.parametrize(
    "spoil",
    [
        _one_row, _differ, _sequence, _sequence_by_name, _sequence_end, _output_in_memory,
        _bytes_in_memory, _wrong_size_in_memory, _short, _extra, _missing, _mixed, _unknown_type,
        _no_shape, _negative, _no_inputs, _half_a_type, _empty_rows, _many_raw,
        _many_parameters, _also_in_memory, _offset(int64_param=2**63 - 32),
        _offset(int64_param=-1), _offset(double_param=8.0),
    ],
)  # fmt: skip
def test_requests_that_are_not_cut(spoil: object) -> None:
    request = request_of([counted("INT32", [4, 2])])
    assert callable(spoil)
    spoil(request)
    with pytest.raises(NotSplit):
        read_message(request.SerializeToString())


@pytest.mark.parametrize("data", [b"\x05\0\0\0abc", b"\x01\0\0\0ab", b"\0\0\0\0", b"\xff" * 8])
def test_bytes_that_leave_their_buffer_are_not_cut(data: bytes) -> None:
    request = request_of([counted("BYTES", [2])])
    request.raw_input_contents[0] = data
    with pytest.raises(NotSplit):
        read_message(request.SerializeToString())


def test_a_sequence_id_of_zero_is_none() -> None:
    request = request_of([counted("INT32", [4, 2])], sequence_id=0)
    assert read_message(request.SerializeToString()).rows == 4


@pytest.mark.parametrize("datatype", RAW_TYPES)
def test_answers_to_parts_are_joined(datatype: str) -> None:
    request = request_of([counted(datatype, [5, 3]), counted("BYTES", [5], "INPUT1")])
    cut = read_message(request.SerializeToString())
    parts = [cut.part(0, 2), cut.part(2, 2), cut.part(4, 1)]
    answers = [
        answer_of(pb.ModelInferRequest.FromString(message_of(part))).SerializeToString()
        for part in parts
    ]
    joined, version = finish(join_messages(answers, [2, 2, 1]))
    assert message_of(joined) == answer_of(request).SerializeToString()
    assert version == "1"


def test_typed_answers_are_joined() -> None:
    answers = []
    for values in ([1, 2], [3]):
        answer = pb.ModelInferResponse(model_version="1")
        output = answer.outputs.add(name="A", datatype="INT64", shape=[len(values)])
        output.contents.int64_contents.extend(values)
        answers.append(answer.SerializeToString())
    joined = pb.ModelInferResponse.FromString(message_of(finish(join_messages(answers, [2, 1]))[0]))
    assert list(joined.outputs[0].shape) == [3]
    assert list(joined.outputs[0].contents.int64_contents) == [1, 2, 3]


def _answers() -> list[pb.ModelInferResponse]:
    request = request_of([counted("INT32", [2, 2]), counted("BYTES", [2], "INPUT1")])
    return [answer_of(request), answer_of(request)]


def _joined(answers: list[pb.ModelInferResponse]) -> pb.ModelInferResponse:
    texts = [answer.SerializeToString() for answer in answers]
    return pb.ModelInferResponse.FromString(message_of(finish(join_messages(texts, [2, 2]))[0]))


def test_outputs_are_joined_by_name() -> None:
    answers = _answers()
    wanted = _joined(answers)
    other = pb.ModelInferResponse()
    other.CopyFrom(answers[1])
    del other.outputs[:], other.raw_output_contents[:]
    other.outputs.extend(reversed(answers[1].outputs))
    other.raw_output_contents.extend(reversed(answers[1].raw_output_contents))
    assert _joined([answers[0], other]) == wanted


def test_empty_outputs_keep_their_entry() -> None:
    answers = _answers()
    for answer in answers:
        answer.outputs.add(name="EMPTY", datatype="FP32", shape=[2, 0])
        answer.raw_output_contents.append(b"")
    joined = _joined(answers)
    assert list(joined.outputs[2].shape) == [4, 0]
    assert joined.raw_output_contents[2] == b""


def test_parameters_that_differ_are_the_first_ones_unless_they_count() -> None:
    answers = _answers()
    for number, answer in enumerate(answers):
        answer.parameters["equal"].int64_param = 3
        answer.parameters["count"].int64_param = number
        answer.parameters["text"].string_param = str(number)
    joined = _joined(answers)
    assert {key: str(value) for key, value in joined.parameters.items()} == {
        "equal": "int64_param: 3\n",
        "text": 'string_param: "0"\n',
    }


def test_answers_without_a_batch_dimension_name_the_output() -> None:
    answers = _answers()
    answers[1].outputs[0].shape[0] = 7
    with pytest.raises(NotMerged, match="'OUTPUT0' has no batch dimension") as failure:
        _joined(answers)
    assert failure.value.is_of_model


def test_versions_are_not_mixed() -> None:
    answers = _answers()
    answers[1].model_version = "2"
    with pytest.raises(NotMerged, match="versions 1 and 2") as failure:
        _joined(answers)
    assert not failure.value.is_of_model


@pytest.mark.parametrize("spoilt", ["datatype", "shape", "name", "raw", "twice"])
def test_answers_that_cannot_be_joined(spoilt: str) -> None:
    answers = _answers()
    output = answers[1].outputs[0]
    if spoilt == "datatype":
        output.datatype = "FP32"
    elif spoilt == "shape":
        output.shape[1] = 1
    elif spoilt == "name":
        output.name = "OTHER"
    elif spoilt == "raw":
        del answers[1].raw_output_contents[1]
    else:
        answers[0].outputs[1].name = answers[1].outputs[1].name = "OUTPUT0"
    with pytest.raises(NotMerged):
        _joined(answers)


def test_the_rows_are_known_by_the_first_bytes() -> None:
    message = request_of([counted("FP32", [300, 50])]).SerializeToString()
    assert first_rows(message, len(message)) == 300
    known = next(end for end in range(200) if first_rows(message[:end], len(message)) is not None)
    assert known < 60
    assert all(first_rows(message[:end], len(message)) is None for end in range(known))
    assert first_rows(b"\xff\xff", 2) == 1


def test_joining_very_many_outputs_takes_time_in_proportion() -> None:
    def work(count: int) -> int:
        answer = pb.ModelInferResponse(model_name="m", model_version="1")
        for number in range(count):
            answer.outputs.add(name=f"OUT{number}", datatype="INT32", shape=[1])
            answer.raw_output_contents.append(bytes(4))
        text = answer.SerializeToString()
        return instructions(lambda: finish(join_messages([text] * 3, [1, 1, 1])))

    assert work(400) < 5 * work(100)


def test_each_answer_is_read_in_a_step_of_its_own() -> None:
    work = join_messages([pb.ModelInferResponse().SerializeToString(), b"\xff"], [1, 1])
    next(work)
    with pytest.raises(NotMerged, match="no inference response"):
        next(work)


def test_requests_whose_parts_would_take_long_to_make_are_not_cut() -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="A", datatype="BYTES", shape=[2, 100_000])
    tensor.contents.bytes_contents.extend([b""] * 200_000)
    with pytest.raises(NotSplit, match="very many elements"):
        read_message(request.SerializeToString())
    request = pb.ModelInferRequest(model_name="m")
    for number in range(500):
        tensor = request.inputs.add(name=f"A{number}", datatype="INT32", shape=[2])
        tensor.contents.int_contents.extend([1, 2])
    with pytest.raises(NotSplit, match="very many inputs"):
        read_message(request.SerializeToString())


def test_long_typed_contents_are_parsed_in_a_step_of_their_own() -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="A", datatype="FP32", shape=[2, 10_000])
    tensor.contents.fp32_contents.extend([1.5] * 20_000)
    assert sum(1 for _ in cut_message(request.SerializeToString())) == 3


@pytest.mark.parametrize(
    ("datatype", "field", "element"),
    [
        ("BYTES", "bytes_contents", b"x"),
        ("INT8", "int_contents", 1),
        ("INT64", "int64_contents", 1),
    ],
)
def test_parsed_contents_take_no_more_memory_than_is_said(
    datatype: str, field: str, element: object
) -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="IN", datatype=datatype, shape=[64, 2048])
    getattr(tensor.contents, field).extend([element] * (64 * 2048))
    message = request.SerializeToString()
    read_message(message)  # what one takes for a moment is there from now on
    before = resident()
    cuts = [read_message(message) for _ in range(CUTS)]
    assert resident() - before <= sum(cut.memory for cut in cuts) + SLACK


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
