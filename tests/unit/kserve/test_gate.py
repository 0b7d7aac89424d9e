"""Names that must not get out of a Triton, or in."""

from __future__ import annotations

import time

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import (
    REGISTER_BYTES,
    RESERVED,
    NameMask,
    RegistrationWatch,
    StreamMask,
    is_registration,
    masked,
    names_reserved_region,
)
from lb.kserve.operations import GRPC_OPERATIONS
from lb.wire.grpc.message import frame_message

_LEAK = b'{"error":"no room for ' + RESERVED + b"7f-a1.b' of 9 bytes\"}"
_HIDDEN = b'{"error":"no room for ' + b"*" * (len(RESERVED) + 7) + b"' of 9 bytes\"}"


def test_name_is_masked_and_nothing_else() -> None:
    assert masked(_LEAK) == _HIDDEN
    assert masked(_LEAK * 2) == _HIDDEN * 2
    assert masked(b"triton_python_backend_shm_regio") == b"triton_python_backend_shm_regio"
    assert masked(RESERVED) == b"*" * len(RESERVED)


@pytest.mark.parametrize("cut", range(len(_LEAK) + 1))
def test_secret_part_of_a_name_never_gets_out_whatever_the_cut(cut: int) -> None:
    mask = NameMask()
    out = mask.feed(_LEAK[:cut]) + mask.feed(b"") + mask.feed(_LEAK[cut:])
    assert len(out) == len(_LEAK)
    assert b"7f-a1.b" not in out
    assert RESERVED not in out
    start = _LEAK.index(RESERVED)
    if not start < cut < start + len(RESERVED):
        assert out == _HIDDEN


def test_a_piece_that_ends_a_line_passes_unless_there_is_a_name_or_one_may_have_begun() -> None:
    mask = NameMask()
    event = b"data: 1\n\n"
    assert mask.passes(b"9\r\n" + event + b"\r\n")
    assert not mask.passes(b"7\r\ndata: 1\r\n"), "a name may begin at its end"
    assert not mask.passes(b"99\r\ndata: " + RESERVED + b"\n\r\n")
    mask.feed(RESERVED[:9])
    assert not mask.passes(event + b"\r\n"), "a name may have begun before"
    mask.feed(event)
    assert mask.passes(event + b"\r\n")


def test_name_in_single_bytes_and_the_text_behind_it() -> None:
    mask = NameMask()
    out = b"".join(mask.feed(bytes((byte,))) for byte in _LEAK)
    assert out.endswith(b"*******' of 9 bytes\"}")
    assert out.startswith(b'{"error":"no room for ')


def test_two_names_in_a_row_of_pieces() -> None:
    mask = NameMask()
    text = RESERVED + b"abc " + RESERVED + b"def "
    out = b"".join(mask.feed(text[at : at + 40]) for at in range(0, len(text), 40))
    assert b"abc" not in out
    assert b"def" not in out


@pytest.mark.parametrize(
    ("path", "is_reserved"),
    [
        (b"/v2/systemsharedmemory/region/" + RESERVED + b"7/register", True),
        (b"/v2/systemsharedmemory/region/%74riton%5fpython_backend_shm%5Fregion_/register", True),
        (b"/v2/systemsharedmemory/region/my_region/register", False),
        (b"/v2/systemsharedmemory/region/triton_python_backend_shm/register", False),
    ],
)
def test_reserved_names_in_paths(path: bytes, is_reserved: bool) -> None:
    assert names_reserved_region(path) is is_reserved


@pytest.mark.parametrize(
    "body",
    [
        b'{"key":"' + RESERVED + b'7"}',
        b'{"key":"/k","key":"/' + RESERVED + b'7"}',
        b'{"key":"//\\u0074riton_python\\u005Fbackend_shm_region_"}',
        b'{"key":"' + b"".join(b"\\u00%02X" % byte for byte in RESERVED) + b'"}',
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_reserved_keys_in_json_are_found_before_their_end(body: bytes, step: int) -> None:
    watch = RegistrationWatch()
    passed = b""
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        if watch.feed(piece):
            break
        passed += piece
    assert len(passed) <= len(body) - 2, "what went on is no complete document"


def test_ordinary_registrations_pass_and_endless_ones_do_not() -> None:
    watch = RegistrationWatch()
    assert not watch.feed(b'{"key":"/k","offset":0,"byte_size":64}')
    assert not watch.feed(b" " * (REGISTER_BYTES - 100))
    assert watch.feed(b" " * 100)


def test_both_kinds_of_registration_are_meant() -> None:
    assert sorted(
        operation.name for operation in GRPC_OPERATIONS.values() if is_registration(operation)
    ) == ["CudaSharedMemoryRegister", "SystemSharedMemoryRegister"]


_RESULT = frame_message(
    pb.ModelStreamInferResponse(
        infer_response=pb.ModelInferResponse(model_name=RESERVED.decode() + "kept", id="1")
    ).SerializeToString()
)
_FAILURE = frame_message(
    pb.ModelStreamInferResponse(
        error_message="no room for " + RESERVED.decode() + "secret here"
    ).SerializeToString()
)


@pytest.mark.parametrize("step", [*range(1, 60), 10_000])
def test_errors_in_a_stream_are_masked_and_results_are_not(step: int) -> None:
    stream = _RESULT + _FAILURE + frame_message(b"") + _RESULT * 2 + _FAILURE
    mask = StreamMask()
    out = b"".join(
        bytes(mask.feed(memoryview(stream)[at : at + step])) for at in range(0, len(stream), step)
    )
    assert len(out) == len(stream)
    assert b"secret" not in out
    assert out.count(b"kept") == 3
    assert out.count(b" here") == 2
    assert out.startswith(_RESULT)


def test_a_result_is_not_copied() -> None:
    mask = StreamMask()
    view = memoryview(_RESULT)
    assert mask.feed(_RESULT) is _RESULT
    assert mask.feed(view[:20]) == view[:20]
    rest = view[20:]
    assert mask.feed(rest) is rest


def test_an_error_without_a_name_is_not_copied() -> None:
    mask = StreamMask()
    failure = frame_message(
        pb.ModelStreamInferResponse(error_message="no room").SerializeToString()
    )
    assert mask.feed(failure) is failure
    assert mask.completed == 1
    assert mask.is_between
    assert mask.feed(memoryview(failure)) == failure
    assert b"secret" not in mask.feed(_FAILURE)


@pytest.mark.parametrize("step", [1, 4, 7, 10_000])
def test_messages_are_counted_and_the_rest_can_be_cut(step: int) -> None:
    stream = _RESULT + frame_message(b"") + _FAILURE + _RESULT
    mask = StreamMask()
    for at in range(0, len(stream), step):
        mask.feed(stream[at : at + step])
    assert mask.completed == 4
    assert mask.cutter().is_between
    mask.feed(_RESULT[:8])
    cutter = mask.cutter()
    assert not cutter.is_between
    assert cutter.advance(_RESULT, 8) == len(_RESULT)
    assert cutter.is_between


def test_many_prefixes_in_one_name_take_linear_time() -> None:
    text = RESERVED * (64 * 1024 // len(RESERVED))
    mask = NameMask()
    started = time.process_time()
    assert mask.feed(text + b"!") == b"*" * len(text) + b"!"
    assert mask.feed(text) == b"*" * len(text)
    assert mask.feed(b"more") == b"****"
    took = time.process_time() - started
    assert took < 0.1  # it takes 1 ms; with the square of the length it would be a second
