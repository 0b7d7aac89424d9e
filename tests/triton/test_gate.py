"""Names that real Tritons give away, requests that they should not see, and that they live on."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from tests.corpus.http1_rows import Row
from tests.corpus.payloads import OPEN
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import call_stream, call_unary
from tests.triton.raw_http import RawConnection, ask_once, message
from tests.triton.server import RealTriton
from tests.triton.tensors import check_sum_and_difference, numbers, pair, tensor

_LEAK = "no room in triton_python_backend_shm_region_7f-a1 for it"
_HIDDEN = f"no room in {'*' * 38} for it"
_RESERVED = "/triton_python_backend_shm_region_1"


def _infer(text: str) -> bytes:
    why = {"name": "WHY", "shape": [1], "datatype": "BYTES", "data": [text]}
    return json.dumps({"inputs": [why]}).encode()


def _grpc_infer(text: str) -> bytes:
    made = tensor(grpcclient, "WHY", np.array([text.encode()], dtype=np.object_))
    request = service_pb2.ModelInferRequest(model_name="failing")
    request.inputs.append(made._get_tensor())
    request.raw_input_contents.append(made._get_content())
    return request.SerializeToString()


@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
def test_http_errors_hide_names_of_regions(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...], route: str
) -> None:
    body = _infer(_LEAK) if route == "infer" else json.dumps({"WHY": _LEAK}).encode()
    request = message("POST", f"/v2/models/failing/{route}", body)
    direct = ask_once(tritons[0].target.http, request)
    answer = ask_once(balancer.target.http, request)
    assert _LEAK.encode() in direct.body
    assert answer.body == direct.body.replace(_LEAK.encode(), _HIDDEN.encode())
    assert answer.status_line == direct.status_line


def test_grpc_errors_hide_names_of_regions(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    assert _LEAK in call_unary(tritons[0].target.grpc, "ModelInfer", _grpc_infer(_LEAK)).details
    outcome = call_unary(balancer.target.grpc, "ModelInfer", _grpc_infer(_LEAK))
    assert outcome.details == _HIDDEN


def test_streams_hide_names_of_regions(balancer: RunningBalancer) -> None:
    outcome = call_stream(balancer.target.grpc, "ModelStreamInfer", [_grpc_infer(_LEAK)] * 3)
    texts = [
        service_pb2.ModelStreamInferResponse.FromString(content).error_message
        for content in outcome.messages
    ]
    assert texts == [_HIDDEN] * 3


@pytest.mark.parametrize("row", OPEN, ids=str)
def test_tritons_live_on_after_what_is_refused_and_what_is_not(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...], row: Row
) -> None:
    with socket.create_connection(_address(balancer.target.http), timeout=30) as client:
        client.sendall(row.wire)
        status = int(client.recv(65536).split(b" ")[1])
    if row.status == 400:
        assert status == 400
    assert all(triton.is_running for triton in tritons)
    client_of_all = grpcclient.InferenceServerClient(balancer.target.grpc)
    values = numbers(batch=1)
    check_sum_and_difference(client_of_all.infer("simple", pair(grpcclient, values)), values)
    client_of_all.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(
            name="r", key=_RESERVED, byte_size=64)),
        ("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(
            name=_RESERVED[1:], key="/mine", byte_size=64)),
        ("CudaSharedMemoryRegister", service_pb2.CudaSharedMemoryRegisterRequest(
            name=_RESERVED[1:], byte_size=64)),
    ],
)  # fmt: skip
def test_reserved_regions_are_not_registered_over_grpc(
    balancer: RunningBalancer, method: str, request_: Message
) -> None:
    outcome = call_unary(balancer.target.grpc, method, request_.SerializeToString())
    assert outcome.code.value[0] == 3
    assert outcome.details == "shared memory region has a reserved name"


def test_chunk_storm_is_answered(balancer: RunningBalancer) -> None:
    body = b'{"inputs": []}' + b" " * 200_000
    storm = b"".join(b"1;storm=yes\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = message("POST", "/v2/models/simple/infer", None, "Transfer-Encoding: chunked")
    with RawConnection(balancer.target.http) as connection:
        answer = connection.ask(head + storm)
        assert answer.status == 400
        assert b"simple" in answer.body
        assert connection.ask(message("GET", "/v2/models/simple/ready")).status == 200


def test_options_of_the_server_are_ours(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    request = b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"
    with pytest.raises(EOFError):
        ask_once(tritons[0].target.http, request)
    assert ask_once(balancer.target.http, request).status == 200
