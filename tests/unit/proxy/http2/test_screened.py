"""Calls whose messages are looked into."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest

from lb.access.gate import Claim, FieldLine, Gate
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import RESERVED
from tests.fakes.frames import (
    DATA,
    HEADERS,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    answer,
    data,
    headers,
    message,
    named,
    request_fields,
)
from tests.fakes.links import PaperRelay

_SERVICE = b"/inference.GRPCInferenceService/"
_REGISTER = _SERVICE + b"SystemSharedMemoryRegister"
_STREAM = _SERVICE + b"ModelStreamInfer"


class OpenGate(Gate):
    """Asks nothing: who may register is a matter of its own."""

    def claim(
        self, operation: Operation, fields: Sequence[FieldLine], *, is_control: bool
    ) -> Claim | None:
        return None


def _registration(key: str) -> bytes:
    return pb.SystemSharedMemoryRegisterRequest(name="r", key=key).SerializeToString()


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_registration_of_a_reserved_region_reaches_no_backend(step: int) -> None:
    relay = PaperRelay(gate=OpenGate())
    backend, client = relay.backend(), relay.client()
    body = message(_registration("/" + RESERVED.decode() + "1"))
    client.sends(headers(1, request_fields(path=_REGISTER)))
    for at in range(0, len(body), step):
        if relay.finished.records:
            break
        client.sends(data(1, body[at : at + step], end=at + step >= len(body)))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (3, Reason.BAD_REQUEST)
    assert not backend.gets()
    assert relay.is_clean()


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("step", [1, 1000])
async def test_other_registrations_go_on_unchanged(step: int, flag: int) -> None:
    relay = PaperRelay(gate=OpenGate())
    backend, client = relay.backend(), relay.client()
    content = _registration("/mine")
    body = message(gzip.compress(content) if flag else content, flag)
    client.sends(headers(1, request_fields(path=_REGISTER)))
    for at in range(0, len(body), step):
        assert not backend.gets(), "it is held back until it is complete"
        client.sends(data(1, body[at : at + step]))
    client.sends(data(1, b"", end=True))
    sent = backend.gets()
    assert b"".join(found.payload for found in sent if found.kind == DATA) == body
    assert sent[-1].ends_stream
    backend.sends(answer(1, message(b"")))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.operation.name) == (0, "SystemSharedMemoryRegister")
    assert relay.is_clean()


@pytest.mark.parametrize("begin", [b"", b"\0\0\0\0\x09abc"])
async def test_registration_without_a_whole_message_is_for_the_backend_to_judge(
    begin: bytes,
) -> None:
    relay = PaperRelay(gate=OpenGate())
    backend, client = relay.backend(), relay.client()
    client.sends(headers(1, request_fields(path=_REGISTER), end=not begin))
    if begin:
        client.sends(data(1, begin, end=True))
    assert [found.kind for found in backend.gets()] == [HEADERS, DATA][: 1 + bool(begin)]
    backend.sends(answer(1))
    assert relay.is_clean()


@pytest.mark.parametrize("whole", [True, False])
async def test_errors_in_a_stream_are_masked_and_results_pass(whole: bool) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    failure = pb.ModelStreamInferResponse(
        error_message="no room for " + RESERVED.decode() + "secret"
    ).SerializeToString()
    result = pb.ModelStreamInferResponse(
        infer_response=pb.ModelInferResponse(id="secret")
    ).SerializeToString()
    body = message(result) + message(failure)
    client.sends(
        headers(1, request_fields(path=_STREAM)) + data(1, named(b"m"), end=True),
    )
    parts = [headers(1, RESPONSE_FIELDS), data(1, body), headers(1, OK_TRAILERS, end=True)]
    if whole:
        backend.sends(b"".join(parts))
    else:
        for part in parts:
            backend.sends(part)
    got = b"".join(found.payload for found in client.gets() if found.kind == DATA)
    assert len(got) == len(body)
    assert got.count(b"secret") == 1
    assert got.startswith(message(result))
    (record,) = relay.finished.records
    assert (record.model, record.grpc_status, record.bytes_out) == (b"m", 0, len(body))
    assert relay.is_clean()
