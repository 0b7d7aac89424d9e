"""What requests say of their sequence: read from undecoded messages and from JSON in pieces."""

from __future__ import annotations

import gzip
import json
import zlib

from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb
from lb.kserve.inspect import inspect
from lb.kserve.json_parameters import ParametersScan
from lb.kserve.sequence import http_step, json_step
from lb.proxy.http1.inspection import BodyInspection
from tests.fakes.steps import grpc_step
from tests.fuzz.target import Target, cuttings
from tests.reference import sequence as reference

_MODEL = b"m"


def _may_hold_groups(message: bytes) -> bool:
    """Nobody writes those, and they are looked at up to a limit."""
    return any(byte & 7 in (3, 4) for byte in message)


def _check_message(data: bytes) -> None:
    step = grpc_step(data, _MODEL)
    assert step == grpc_step(memoryview(data), _MODEL)
    try:
        pb.ModelInferRequest.FromString(data)
    except DecodeError:
        pass  # it may have a step before what breaks it; no server runs it
    else:
        assert _may_hold_groups(data) or step == reference.grpc_step(data, _MODEL)
    for size in {0, 1, len(data) // 2, len(data)}:
        found = inspect(data[:size], len(data), with_rows=True, with_regions=True)
        assert found.is_complete or size < len(data)


def _check_json(data: bytes) -> None:
    step = http_step(data, _MODEL)
    try:
        json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        is_json = False
    else:
        is_json = b"\\u" not in data  # names that are spelled with escapes are not found
    if is_json:
        assert step == reference.http_step(data, _MODEL)
    for pieces in cuttings(data):
        scan = ParametersScan()
        for piece in pieces:
            if scan.feed(piece):
                break
        if is_json and step is not None:
            assert json_step(scan.parameters, _MODEL) == step
    for is_compressed in (False, True):
        look = BodyInspection(-1, 1000, is_compressed=is_compressed, keeps_text=True)
        look.feed(data)
        look.step(_MODEL)
        assert isinstance(look.regions, tuple)


def _request(**parameters: int | str | bool) -> bytes:
    request = pb.ModelInferRequest(model_name="m", id="r", raw_input_contents=[b"x" * 20])
    request.inputs.add(name="X").parameters["sequence_id"].int64_param = 9
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request.SerializeToString()


_MESSAGES = (
    _request(sequence_id=77, sequence_start=True, sequence_end=False),
    _request(sequence_id="77", sequence_end=True),
    _request(sequence_id=-1, priority=3),
    _request(sequence_id=True, sequence_start=1),
    _request() + _request(sequence_id=5),
)
_TAGS = (
    b"\x0a\x0bsequence_id", b"\x0a\x0esequence_start", b"\x12\x02\x10\x01", b"\x12\x05\x1a\x03abc",
    b"\x22\x11", b"\x22\x00", b"\x2a\x00", b"\x3a\x00", b"\xff" * 9 + b"\x01", b"\x13", b"\x14",
)  # fmt: skip
_INPUT = '{"name":"X","data":["a","\\"]}"],"parameters":{"binary_data_size":4}}'
_JSON = tuple(
    text.replace("TENSOR", _INPUT).encode()
    for text in (
        '{"id":"r","inputs":[TENSOR],"parameters":{"sequence_id":77,"sequence_start":true}}',
        '{"parameters":{"sequence_id":"77"},"inputs":[TENSOR]}',
        '{"parameters":{"sequence_id":0},"parameters":{"sequence_id":1}}',
        '{ "x" : { "parameters" : {"sequence_id":1} } , "parameters" : {"sequence_id":2} }',
        '[{"parameters":{"sequence_id":1}}]',
    )
)
_WORDS = (
    b'"parameters":', b'"parameters"', b'"sequence_id":', b'{"sequence_id":7}', b"{", b"}", b"[",
    b"]", b'"', b'\\"', b"\\\\", b",", b":", b"true", b"1e3", b"-0", b"18446744073709551616",
)  # fmt: skip

TARGETS = (
    Target("grpc_sequence", _check_message, _MESSAGES, _TAGS),
    Target(
        "json_sequence", _check_json, (*_JSON, *map(gzip.compress, _JSON), zlib.compress(_JSON[0])),
        _WORDS, 500,
    ),
)  # fmt: skip
