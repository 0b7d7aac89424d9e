"""Streams whose errors are looked into."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import RESERVED
from tests.fakes.frames import (
    DATA,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    data,
    headers,
    message,
    named,
    request_fields,
)
from tests.fakes.links import PaperRelay

_SERVICE = b"/inference.GRPCInferenceService/"
_STREAM = _SERVICE + b"ModelStreamInfer"


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
