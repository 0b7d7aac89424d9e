"""What is looked at of gRPC: prefixes, a model's name, timeouts, status texts."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import NAME_SEARCH_LIMIT, MessageMeter, frame_message, model_name
from lb.wire.grpc.status import GrpcStatus, encode_message, status_of_http, status_of_reset
from lb.wire.grpc.timeout import parse_timeout
from tests.fuzz.target import Target, same_for_every_cutting
from tests.reference.grpc_message import first_name, largest


def _check_prefixes(data: bytes) -> None:
    def read(pieces: list[bytes]) -> int:
        meter = MessageMeter()
        for piece in pieces:
            meter.feed(piece)
        return meter.largest

    assert same_for_every_cutting(read, data) == largest([data])


def _check_name(data: bytes) -> None:
    name = model_name(data)
    assert name == first_name(data)
    for size in range(min(len(data), 40)):
        assert model_name(data[:size]) in (None, name)
    if name is None:
        assert len(data) < NAME_SEARCH_LIMIT + 8
    elif name and int.from_bytes(data[1:5], "big") == len(data) - 5:
        _compare_with_protobuf(data[5:], name)


def _compare_with_protobuf(message: bytes, name: bytes) -> None:
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return
    first = pb.ModelInferRequest(model_name=name.decode()).SerializeToString()
    # The last of several counts for protobuf; no writer makes several.
    rest = message[len(first) :]
    if message.startswith(first) and b"\x0a" not in rest:
        assert request.model_name.encode() == name


def _check_timeout(data: bytes) -> None:
    seconds = parse_timeout(data)
    if seconds is not None:
        assert 0 <= seconds <= 99_999_999 * 3600
        digits, unit = data[:-1], data[-1:]
        assert 1 <= len(digits) <= 8
        assert all(48 <= byte <= 57 for byte in digits)
        factor = dict(zip(b"HMSmun", (3600, 60, 1, 1e-3, 1e-6, 1e-9), strict=True))[unit[0]]
        assert seconds == int(digits) * factor


def _check_status(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    encoded = encode_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote_to_bytes(encoded) == text.encode()
    number = int.from_bytes(data[:4], "big")
    assert status_of_http(number) in GrpcStatus
    assert status_of_reset(number) in GrpcStatus


def _named(name: str, **more: object) -> bytes:
    return frame_message(pb.ModelInferRequest(model_name=name, **more).SerializeToString())


_NAMES = (
    _named("simple"),
    _named("m", model_version="1", id="7", raw_input_contents=[b"x" * 50]),
    _named("n" * 200),
    _named("n" * 1025),
    _named("", model_version="1"),
    b"\1" + _named("compressed")[1:],
)
_PIECES = (b"\x0a", b"\x0a\x80\x08", b"\x12\x011", b"\0\0\0\0", b"\0\0\0\0\0", b"\xff" * 5, b"\x80")

TARGETS = (
    Target("grpc_prefix", _check_prefixes, (*_NAMES, b"".join(_NAMES)), _PIECES, 500),
    Target("grpc_model_name", _check_name, _NAMES, _PIECES),
    Target(
        "grpc_timeout",
        _check_timeout,
        (b"1S", b"99999999H", b"100m", b"0n", b"5u", b"1M", b"123456789S", b"-1S"),
        (b"1", b"S", b"\n", b"\xd9\xa5"),
        200,
    ),
    Target("grpc_status", _check_status, (b"all well", b"100 %", "ünïcode\n\0".encode()), (), 200),
)
