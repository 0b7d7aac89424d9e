"""Requests that a real Triton never answers: a batch of zero rows, on a model without dynamic
batching. All others are served."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from tests.fakes.process import wait_until
from tests.fakes.serving import metric
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton

_PATH = "/v2/models/simple_identity/infer"
_WITHIN_S = 15.0


def body(*texts: str) -> bytes:
    """A request of so many rows."""
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(texts), min(len(texts), 1)]}
    return json.dumps({"inputs": [tensor | {"data": list(texts)}]}).encode()


def ask(address: str, content: bytes, timeout_s: float) -> tuple[int, float]:
    """The status, and the seconds until it came; status 0 is no answer."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("POST", _PATH, content)
        return connection.getresponse().status, time.monotonic() - began
    except TimeoutError:
        # A reset says that it has gone; who only ends its side might wait for the answer.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return 0, time.monotonic() - began
    finally:
        connection.close()


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBalancer]:
    """A balancer before two Tritons of its own: what is lost in them stays there."""
    workspace = tmp_path_factory.mktemp("losing")
    records = workspace / "records"
    records.mkdir()
    with RealTriton.several(2, workspace, records) as tritons:
        yield from RunningBalancer.run(workspace, tritons)
        for triton in tritons:
            triton.kill9()  # it would wait for what it has lost


def test_one_model_is_served_beside_requests_that_its_tritons_have_lost(
    losing: RunningBalancer,
) -> None:
    address = losing.target.http
    for _ in range(20):
        assert ask(address, body("a"), _WITHIN_S)[0] == 200
    slowest = 0.0
    for _ in range(4):
        assert ask(address, body(), 0.5)[0] == 0
        for _ in range(10):
            status, took_s = ask(address, body("a"), _WITHIN_S)
            assert status == 200
            slowest = max(slowest, took_s)
    assert slowest < 5.0
    wait_until(
        lambda: sum(each.in_flight for each in losing.backends().values()) == 0,
        timeout_s=_WITHIN_S,
        what="nothing is under way",
    )
    counts = [
        metric(losing.metrics, f'triton_lb_backend_lost_requests_total{{backend="{name}"}}')
        for name in losing.backends()
    ]
    assert sum(counts) == 4


def test_clients_that_wait_for_a_lost_answer_hold_back_nobody(losing: RunningBalancer) -> None:
    message = pb.ModelInferRequest(model_name="simple_identity")
    message.inputs.add(name="INPUT0", datatype="BYTES", shape=[0, 0])
    message.raw_input_contents.append(b"")
    method = messages.MODEL_INFER
    with grpc.insecure_channel(losing.target.grpc) as channel:
        infer = channel.unary_unary(method.path, request_serializer=method.encode)
        lost = [infer.future(message) for _ in range(6)]
        try:
            for _ in range(20):
                assert ask(losing.target.http, body("a"), _WITHIN_S)[0] == 200
            assert not any(call.done() for call in lost)
        finally:
            for call in lost:
                call.cancel()
