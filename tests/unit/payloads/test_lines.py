"""Each payload is one line of JSON that says what it is, and holds nothing that is to be left
out."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.kserve.payloads import JSON_BYTES
from lb.payloads.lines import Payload, PayloadRecord
from lb.wire.grpc.message import frame_message

Event = dict[str, Any]


def events(
    request: Payload,
    response: Payload,
    protocol: AppProtocol = AppProtocol.HTTP,
    **members: Any,
) -> tuple[Event, Event]:
    """What is logged of an inference."""
    usual = {
        "id": "one",
        "path": b"/v2/models/m/infer",
        "model": b"m",
        "backend": "gpu-0",
        "status": 200,
        "reason": "",
        "started_at": 1e9,
        "ended_at": 1e9 + 0.25,
        "leave_out": frozenset(),
        "max_bytes": 1 << 20,
    }
    record = PayloadRecord(
        protocol=protocol, request=request, response=response, **{**usual, **members}
    )
    lines = record.lines()
    assert lines.count(b"\n") == 2
    first, second = lines.splitlines()
    return json.loads(first), json.loads(second)


def http(body: bytes | None, *fields: str) -> Payload:
    head = "\r\n".join(("POST /x HTTP/1.1", *fields, "\r\n")).encode()
    return Payload(head, None if body is None else (body[:3], body[3:]))


def infer(**members: Any) -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1"], **members)
    request.inputs.add(name="IN", datatype="INT8", shape=[1])
    return request.SerializeToString()


EMPTY = Payload(b"", ())
GRPC = {
    "protocol": AppProtocol.GRPC,
    "path": b"/inference.GRPCInferenceService/ModelInfer",
    "status": 0,
}


def test_both_lines_are_events_of_kserves_logger() -> None:
    request, response = events(http(b'{"inputs": []}'), http(b'{"outputs": []}'))
    assert request == {
        "specversion": "1.0",
        "id": "one",
        "source": "triton-lb",
        "type": "org.kubeflow.serving.inference.request",
        "time": "2001-09-09T01:46:40.000+00:00",
        "inferenceservicename": "m",
        "component": "predictor",
        "protocol": "http",
        "path": "/v2/models/m/infer",
        "datacontenttype": "application/json",
        "data": {"inputs": []},
    }
    assert response["type"] == "org.kubeflow.serving.inference.response"
    assert response["time"] == "2001-09-09T01:46:40.250+00:00"
    assert (response["status"], response["backend"]) == ("200", "gpu-0")
    assert response["data"] == {"outputs": []}


def test_json_of_several_lines_is_one_line() -> None:
    request, _ = events(http(b'{\r\n "a":\t"b\\n",\n"c": 1.10}'), EMPTY)
    assert request["data"] == {"a": "b\n", "c": 1.1}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_json_is_read_and_marked(encoding: str) -> None:
    body = gzip.compress(b"[1]") if encoding == "gzip" else zlib.compress(b"[1]")
    request, _ = events(http(body, f"Content-Encoding: {encoding}"), EMPTY)
    assert (request["contentencoding"], request["data"]) == (encoding, [1])


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"no gzip", "gzip"), (b"\x0b\x02\x80", "br"), (b"", "gzip")]
)
def test_what_cannot_be_inflated_stays_as_it_came(body: bytes, encoding: str) -> None:
    request, _ = events(http(body, f"content-encoding: {encoding}"), EMPTY)
    assert "data" not in request
    assert b64decode(request.get("data_base64", "")) == body
    assert request.get("contentencoding", encoding) == encoding


def test_what_inflates_to_very_much_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(1 << 20))
    request, _ = events(http(bomb, "content-encoding: gzip"), EMPTY, max_bytes=1000)
    assert b64decode(request["data_base64"]) == bomb


def test_a_raw_binary_request_is_marked() -> None:
    fields = ("Inference-Header-Content-Length: 0", "Content-Type: application/octet-stream")
    request, _ = events(http(b"\0\1\2\3", *fields), EMPTY)
    assert request["inferenceheadercontentlength"] == 0
    assert request["datacontenttype"] == "application/octet-stream"
    assert b64decode(request["data_base64"]) == b"\0\1\2\3"


def test_binary_tensors_are_shown_with_their_values() -> None:
    tensor = {"name": "IN", "datatype": "INT8", "shape": [2]}
    text = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 2}}]}).encode()
    fields = f"Inference-Header-Content-Length: {len(text)}"
    request, _ = events(http(text + b"\1\xff", fields), EMPTY)
    assert request["data"] == {"inputs": [tensor | {"data": [1, -1]}]}


@pytest.mark.parametrize("values", [b"\1", b"\1\2\3"])
def test_binary_tensors_that_do_not_fit_their_description_stay_as_they_came(values: bytes) -> None:
    tensor = {"name": "IN", "datatype": "INT8", "parameters": {"binary_data_size": 2}}
    text = json.dumps({"inputs": [tensor]}).encode()
    fields = f"Inference-Header-Content-Length: {len(text)}"
    request, _ = events(http(text + values, fields), EMPTY)
    assert b64decode(request["data_base64"]) == text + values


def test_a_stream_of_events_is_a_text() -> None:
    text = 'data: {"text_output": "ü"}\n\n'
    _, response = events(EMPTY, http(text.encode(), "content-type: text/event-stream"))
    assert (response["datacontenttype"], response["data"]) == ("text/event-stream", text)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[NaN]", b"[" + b"1," * JSON_BYTES + b"1]"])
def test_what_is_no_json_or_too_long_for_it_is_marked_as_binary(body: bytes) -> None:
    request, _ = events(http(body, "content-type: application/json"), EMPTY)
    assert "data" not in request
    assert b64decode(request["data_base64"]) == body


def test_a_payload_that_was_too_large_is_marked() -> None:
    request, response = events(http(None), Payload(b"", None))
    assert request["omitted"] == response["omitted"] == "too_large"
    assert not {"data", "data_base64"} & (request.keys() | response.keys())


@pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
def test_a_grpc_message_is_read(encoding: str | None) -> None:
    message = infer()
    if encoding is None:
        framed = frame_message(message)
    else:
        packed = gzip.compress(message) if encoding == "gzip" else zlib.compress(message)
        framed = b"\1" + len(packed).to_bytes(4, "big") + packed
    request, response = events(Payload(b"", (framed,)), EMPTY, **GRPC)
    assert request["data"]["inputs"][0]["data"] == [1]
    assert request.get("contentencoding") == encoding
    assert response["status"] == "OK"


def test_a_grpc_message_that_is_cut_off_is_left_out() -> None:
    request, _ = events(Payload(b"", (frame_message(infer())[:-1],)), EMPTY, **GRPC)
    assert request["omitted"] == "incomplete"
    assert "data_base64" not in request


def test_messages_of_other_services_are_marked_as_binary() -> None:
    path = b"/tensorflow.serving.PredictionService/Predict"
    request, _ = events(Payload(b"", (frame_message(b"abc"),)), EMPTY, **GRPC | {"path": path})
    assert request["datacontenttype"] == "application/grpc+proto"
    assert b64decode(request["data_base64"]) == b"abc"


def test_a_cut_off_request_says_why() -> None:
    _, response = events(EMPTY, EMPTY, status=0, backend="", reason="client_gone")
    assert (response["status"], response["reason"]) == ("none", "client_gone")


@pytest.mark.parametrize(
    ("payload", "members"),
    [
        (http(b'{"secret": "hidden"}'), {}),
        (http(gzip.compress(b'{"secret": "hidden"}'), "content-encoding: gzip"), {}),
        (http(b'{"inputs": [{"name": "secret", "data": ["hidden"]}]}'), {}),
        (http(b'["hidden"]'), {}),
        (http(b"hidden"), {}),
        (http(b"hidden", "content-type: text/event-stream"), {}),
        (http(b"hidden", "inference-header-content-length: 0"), {}),
        (http(b"hidden", "inference-header-content-length: x"), {}),
        (http(b'{"secret": "hidden", "a": "%b"}' % (b"x" * JSON_BYTES)), {}),
        (Payload(b"", (frame_message(b"hidden"),)), GRPC),
        (Payload(b"", (frame_message(b"hidden"),)), GRPC | {"path": b"/other.Service/Call"}),
        (Payload(b"", (b"\0\0\0\0\x63hidden",)), GRPC),
    ],
)
def test_what_may_be_left_out_never_shows(payload: Payload, members: Event) -> None:
    for event in events(payload, payload, leave_out=frozenset({"secret"}), **members):
        text = json.dumps(event)
        assert "hidden" not in text
        assert "data_base64" not in text


def test_the_rest_of_a_payload_stays() -> None:
    names = frozenset({"secret"})
    request, _ = events(http(b'{"secret": "hidden", "shown": 1}'), EMPTY, leave_out=names)
    assert request["data"] == {"secret": None, "shown": 1}
