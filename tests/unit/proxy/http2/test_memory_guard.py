"""Under strict rules no region of shared memory gets through by gRPC."""

from __future__ import annotations

import gzip
from ipaddress import ip_network

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.kserve import inference_pb2 as pb
from lb.kserve.regions import MAX_FIELDS
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import DATA, data, headers, message, request_fields, rst

INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def infer(region: str = "") -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"shared_memory_region"])
    tensor = request.inputs.add(name="I")
    if region:
        tensor.parameters["shared_memory_region"].string_param = region
    return message(request.SerializeToString())


def compressed(request: bytes) -> bytes:
    return b"\1" + message(gzip.compress(request))[1:]


def strict(*networks: str) -> PaperRelay:
    control = ControlRule(loopback=False, networks=tuple(map(ip_network, networks)))
    return PaperRelay(gate=Gate(GateRules(control=control, strict_shared_memory=True)))


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_region_is_refused_before_the_backend_has_it(path: bytes, step: int) -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = infer("r")
    client.sends(headers(1, request_fields(path=path)))
    for at in range(0, len(request), step):
        client.sends(data(1, request[at : at + step]))
    answer = b"".join(frame.payload for frame in client.gets())
    assert b"grpc-status\x017" in answer
    assert b"access.control.networks" in answer
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    assert request not in sent
    assert relay.is_clean()


async def test_a_region_is_refused_after_messages_that_named_none() -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    client.sends(headers(1, request_fields(path=STREAM)))
    for _ in range(3):
        client.sends(data(1, infer()))
    client.sends(data(1, infer("r")))
    assert b"access.control.networks" in b"".join(frame.payload for frame in client.gets())
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    assert sent == infer() * 3
    assert relay.is_clean()


@pytest.mark.parametrize(
    ("relay_of", "request_"), [((), infer()), (("0.0.0.0/0", "::/0"), infer("r"))]
)
async def test_other_inferences_pass(relay_of: tuple[str, ...], request_: bytes) -> None:
    relay = strict(*relay_of)
    client, backend = relay.client(), relay.backend()
    client.sends(headers(1, request_fields(path=INFER)), data(1, request_, end=True))
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    assert sent == request_


def tiny_fields(count: int) -> bytes:
    """A request that compresses to next to nothing: its first input has so many empty names."""
    tensor = b"\x0a\x00" * count
    length = bytes((len(tensor) & 0x7F | 0x80, len(tensor) >> 7 & 0x7F | 0x80, len(tensor) >> 14))
    return b"\x0a\x01m" + b"\x2a" + length + tensor


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize("is_compressed", [False, True])
async def test_many_fields_take_many_turns_of_the_loop(path: bytes, *, is_compressed: bool) -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = tiny_fields(MAX_FIELDS - 10)
    sent = compressed(request) if is_compressed else message(request)
    assert len(sent) < 300 or not is_compressed
    more = infer()
    turns = client.sends(
        headers(1, request_fields(path=path)), data(1, sent[:100]), data(1, sent[100:]),
        data(1, more, end=True),
    )  # fmt: skip
    assert turns > MAX_FIELDS // 1000
    assert b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA) == sent + more


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_more_fields_than_any_client_writes_are_refused_as_such(path: bytes) -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = compressed(tiny_fields(MAX_FIELDS + 10))
    client.sends(headers(1, request_fields(path=path)), data(1, request, end=True))
    answer = b"".join(frame.payload for frame in client.gets())
    assert b"grpc-status\x017" in answer
    assert b"too many fields" in answer
    assert not [frame for frame in backend.gets() if frame.kind == DATA]
    assert relay.is_clean()


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_may_leave_in_an_inspection(path: bytes, *, is_reset: bool) -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = compressed(tiny_fields(MAX_FIELDS - 10))
    parts = [headers(1, request_fields(path=path)), data(1, request, end=True)]
    if is_reset:
        assert client.sends(*parts, rst(1)) > 1
    else:
        client.connection.data_received(b"".join(parts))
        client.goes()
        assert not client.transport.reading
    assert not [frame for frame in backend.gets() if frame.kind == DATA and not is_reset]
    assert relay.is_clean()


async def test_a_bomb_is_inflated_in_many_turns() -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = compressed(b"\x0a\x01m" + b"\x3a" + b"\x80\x80\x80\x04" + bytes(8 << 20))
    turns = client.sends(headers(1, request_fields(path=INFER)), data(1, request, end=True))
    assert turns > 8
    assert b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA) == request


async def test_an_honest_request_with_very_many_values_takes_one_turn() -> None:
    relay = strict()
    client, backend = relay.client(), relay.backend()
    request = pb.ModelInferRequest(model_name="m")
    for number in range(100):
        tensor = request.inputs.add(name=f"I{number}", datatype="BYTES", shape=[500])
        tensor.contents.bytes_contents.extend([b"x"] * 50)
    sent = message(request.SerializeToString())
    turns = client.sends(headers(1, request_fields(path=INFER)), data(1, sent, end=True))
    assert turns <= 4
    assert b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA) == sent
