"""Under strict rules no region of shared memory gets through by gRPC."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.kserve import inference_pb2 as pb
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_call import StreamCall
from lb.proxy.http2.watched import WatchedCall, WatchedStreamCall
from tests.fakes.frames import DATA, data, headers, message, request_fields
from tests.fakes.links import PaperRelay

INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def infer(region: str = "") -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"shared_memory_region"])
    tensor = request.inputs.add(name="I")
    if region:
        tensor.parameters["shared_memory_region"].string_param = region
    return message(request.SerializeToString())


def strict(*networks: str) -> PaperRelay:
    control = ControlRule(loopback=False, networks=tuple(map(ip_network, networks)))
    return PaperRelay(gate=Gate(GateRules(control=control, strict_shared_memory=True)))


def test_a_watched_call_is_of_the_same_kind() -> None:
    assert issubclass(WatchedCall, Call)
    assert issubclass(WatchedStreamCall, StreamCall)


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
