"""Names of regions of shared memory in requests that stay undecoded."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.regions import (
    MAX_FIELDS,
    REFUSED,
    UNREADABLE,
    GrpcRegionWatch,
    HttpRegionWatch,
    http_regions,
)
from lb.wire.grpc.message import frame_message
from tests.fakes.inspecting import grpc_regions, refuses, steps_of


def infer(*regions: str, tensor: bytes = b"") -> pb.ModelInferRequest:
    """A request whose inputs, and last output, lie in regions."""
    request = pb.ModelInferRequest(model_name="simple", id="7")
    request.parameters["sequence_id"].int64_param = 3
    for place, region in enumerate(regions):
        tensors = request.outputs if place and place == len(regions) - 1 else request.inputs
        entry = tensors.add(name=f"T{place}")
        entry.parameters["shared_memory_region"].string_param = region
        entry.parameters["shared_memory_byte_size"].int64_param = 64
    if tensor:
        request.inputs.add(name="RAW", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(tensor)
    return request


PLAIN = json.dumps(
    {"inputs": [{"name": "I", "shape": [1], "datatype": "BYTES", "data": ["shared_memory_region"]}]}
).encode()
SHARED = b'{"inputs":[{"name":"I","parameters":{"shared_memory_region" : "in\\u002dput"}}]}'
ESCAPED = b'{"inputs":[{"name":"I","parameters":{"shared\\u005Fmemory_regio\\u006e":"x"}}]}'


def test_regions_of_inputs_and_outputs_are_found_in_grpc() -> None:
    assert grpc_regions(infer("in", "in", "out").SerializeToString()) == (b"in", b"out")


def test_requests_without_regions_have_none() -> None:
    message = infer(tensor=b"shared_memory_region").SerializeToString()

    assert grpc_regions(message) == ()
    assert http_regions(PLAIN) == ()


def test_a_broken_message_names_no_region() -> None:
    assert grpc_regions(infer("in").SerializeToString()[:-3]) == ()


def test_regions_are_found_in_the_first_part_of_a_message() -> None:
    message = infer("in", "out", tensor=bytes(100_000)).SerializeToString()
    assert grpc_regions(message[: 32 * 1024]) == (b"in", b"out")


def test_regions_are_found_in_json_however_they_are_written() -> None:
    assert http_regions(SHARED) == (b"in-put",)
    assert http_regions(ESCAPED) == (b"x",)


def test_a_name_that_is_no_json_is_none() -> None:
    assert http_regions(b'"shared_memory_region":"\\x"') == ()


@pytest.mark.parametrize("pack", [None, gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(("body", "is_refused"), [(PLAIN, False), (SHARED, True), (ESCAPED, True)])
def test_json_in_pieces_is_refused_for_a_region(
    pack: Callable[[bytes], bytes] | None, size: int, body: bytes, *, is_refused: bool
) -> None:
    data = pack(body) if pack else body
    watch = HttpRegionWatch(-1, is_compressed=pack is not None)

    seen = [refuses(watch, data[at : at + size]) for at in range(0, len(data), size)]

    assert any(seen) is is_refused


def test_tensors_behind_the_json_are_not_looked_at() -> None:
    watch = HttpRegionWatch(len(PLAIN), is_compressed=False)

    assert not refuses(watch, PLAIN + b'"shared_memory_region":"x"')
    assert not refuses(watch, b'"shared_memory_region":"x"')


def test_what_cannot_be_inflated_is_refused() -> None:
    assert refuses(HttpRegionWatch(-1, is_compressed=True), b"not zlib")
    assert refuses(GrpcRegionWatch(), b"\1\0\0\0\x09not zlib!")


def test_what_inflates_beyond_all_measure_is_refused() -> None:
    bomb = gzip.compress(bytes(20 << 20))
    prefix = b"\1" + len(bomb).to_bytes(4, "big")

    assert refuses(HttpRegionWatch(-1, is_compressed=True), bomb)
    assert refuses(
        GrpcRegionWatch(), prefix + gzip.compress(b"\x3a\xff\xff\xff\x09" + bytes(20 << 20))
    )
    assert not refuses(
        HttpRegionWatch(2, is_compressed=True), gzip.compress(b"{}" + bytes(20 << 20))
    )


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_grpc_in_pieces_is_refused_for_a_region_in_any_message(
    size: int, *, is_compressed: bool
) -> None:
    def stream(*messages: pb.ModelInferRequest) -> bytes:
        parts = []
        for message in messages:
            data = message.SerializeToString()
            if is_compressed:
                data = gzip.compress(data)
            parts.append(bytes([is_compressed]) + frame_message(data)[1:])
        return b"".join(parts)

    def is_refused(data: bytes) -> bool:
        watch = GrpcRegionWatch()
        return any(refuses(watch, data[at : at + size]) for at in range(0, len(data), size))

    plain = infer(tensor=b"shared_memory_region" * 1000)
    assert not is_refused(stream(plain, plain))
    assert is_refused(stream(plain, infer("in", tensor=b"abc")))
    assert is_refused(stream(infer("in")))


def test_grpc_fields_in_another_order_hide_nothing() -> None:
    tensor = infer(tensor=b"x" * 10_000).SerializeToString()
    message = tensor + infer("in").SerializeToString()

    assert refuses(GrpcRegionWatch(), frame_message(message))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0b\x0c",  # a group
        b"\xff" * 30,  # no tag
        b"\x10\x01" * 20_001,  # very many fields
        b"\x2a\xff\x7f\x22\xfc\x7f",  # a parameter that is too long
        b"\xaa\x80\x80\x80\x10\x00",  # field 5 for protobuf in C++, which drops bit 32
        b"\x2a\x06\xa2\x80\x80\x80\x10\x00",  # the same for field 4 of a tensor
    ],
)
def test_messages_that_cannot_be_looked_into_are_refused(message: bytes) -> None:
    assert refuses(GrpcRegionWatch(), frame_message(message))


@given(st.lists(st.binary(max_size=200), max_size=4), st.booleans(), st.integers(1, 60))
def test_watch_and_walk_agree(tensors: list[bytes], has_region: bool, size: int) -> None:
    request = infer(*(["in"] if has_region else []))
    for tensor in tensors:
        request.inputs.add(name="RAW").contents.bytes_contents.append(tensor)
        request.raw_input_contents.append(tensor)
    message = request.SerializeToString()
    watch, data = GrpcRegionWatch(), frame_message(message)

    seen = any(refuses(watch, data[at : at + size]) for at in range(0, len(data), size))

    assert seen is bool(grpc_regions(message)) is has_region


def many_tensors(count: int) -> bytes:
    """What a model with so many inputs gets: each has a name, a type, a shape and contents."""
    request = pb.ModelInferRequest(model_name="recommender", id="1")
    for number in range(count):
        tensor = request.inputs.add(name=f"feature_{number}", datatype="BYTES", shape=[1, 5])
        tensor.contents.bytes_contents.extend([b"value"] * 5)
    return request.SerializeToString()


def test_an_honest_request_with_a_thousand_inputs_passes() -> None:
    assert not refuses(GrpcRegionWatch(), frame_message(many_tensors(1000)))


def test_what_tensors_hold_is_not_counted() -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="I").contents.bytes_contents.extend([b"x"] * 5 * MAX_FIELDS)
    message = request.SerializeToString()
    assert steps_of(GrpcRegionWatch(), frame_message(message)) == ("", 1)
    assert grpc_regions(message) == ()


def test_fields_beyond_the_budget_are_refused_with_a_reason_of_their_own() -> None:
    for field in (b"\x40\x01", b"\x2a\x00", b"\x22\x00"):
        assert not refuses(GrpcRegionWatch(), frame_message(field * MAX_FIELDS))
        refusal, steps = steps_of(GrpcRegionWatch(), frame_message(field * (MAX_FIELDS + 1)))
        assert refusal == UNREADABLE
        assert steps > MAX_FIELDS // 1000
    assert steps_of(GrpcRegionWatch(), frame_message(infer("r").SerializeToString()))[0] == REFUSED


def test_very_many_messages_take_many_steps() -> None:
    empty = gzip.compress(b"")
    stream = (b"\1" + frame_message(empty)[1:]) * 1000
    refusal, steps = steps_of(GrpcRegionWatch(), stream)
    assert not refusal
    assert steps > 10


def test_crumbs_of_one_parameter_count_once() -> None:
    request = pb.ModelInferRequest()
    request.inputs.add().parameters["x" * 4000].string_param = "y"
    data = frame_message(request.SerializeToString())
    watch = GrpcRegionWatch()
    for _ in range(5):
        assert not any(refuses(watch, data[at : at + 1]) for at in range(len(data)))


def test_regions_far_behind_are_not_looked_for() -> None:
    field = pb.ModelInferRequest(id="x").SerializeToString()
    named = infer("in").SerializeToString()
    assert grpc_regions(field * 1000 + named) == (b"in",)
    assert grpc_regions(field * 10_000 + named) == ()
