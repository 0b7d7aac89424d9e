"""Clients that send half of their requests and no more, or that do not read responses, keep nobody
from idle Tritons."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import h2.config
import h2.connection
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import Balancer, Triton, running, simulated
from tests.fakes.process import wait_until

_ELEMENTS = 100_000
"""The size of an FP32 tensor: 400 KB, more than is held back before a request begins."""
_CLIENTS = 40
_PATIENCE_S = 15.0
"""How long a good client waits. Without any care it would take minutes."""

_FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "a"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]

Finish = Callable[[], int]
"""Sends the rest of the slow requests; gives how many were answered well."""


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def infers_well(balancer: Balancer) -> bool:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    with closing(HTTPConnection(balancer.http, timeout=_PATIENCE_S)) as connection:
        connection.request(
            "POST", "/v2/models/identity_fp32/infer", json.dumps({"inputs": [tensor]})
        )
        return connection.getresponse().status == 200


@contextmanager
def slow_http(balancer: Balancer) -> Iterator[Finish]:
    """Connections that have each sent half of an inference."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [_ELEMENTS]}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 4 * _ELEMENTS}}]})
    body = head.encode() + bytes(4 * _ELEMENTS)
    with ExitStack() as stack:
        connections = []
        for _ in range(_CLIENTS):
            connection = HTTPConnection(balancer.http, timeout=_PATIENCE_S)
            stack.callback(connection.close)
            connection.putrequest("POST", "/v2/models/identity_fp32/infer")
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Inference-Header-Content-Length", str(len(head)))
            connection.endheaders(body[: len(body) // 2])
            connections.append(connection)

        def finish() -> int:
            for each in connections:
                each.send(body[len(body) // 2 :])
            answers = [each.getresponse() for each in connections]
            for each in answers:
                each.read()
            return sum(each.status == 200 for each in answers)

        yield finish


def grpc_inference() -> bytes:
    """A gRPC message that asks for `_ELEMENTS` numbers, with its prefix."""
    message = pb.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[_ELEMENTS])
    message.raw_input_contents.append(bytes(4 * _ELEMENTS))
    content = message.SerializeToString()
    return struct.pack(">xI", len(content)) + content


@contextmanager
def slow_grpc(balancer: Balancer) -> Iterator[Finish]:
    """One connection with calls of which half has been sent."""
    body = grpc_inference()
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    left: dict[int, bytes] = {}
    good: set[int] = set()
    with socket.create_connection(address(balancer.grpc), timeout=_PATIENCE_S) as sock:

        def turn() -> None:
            """Read once, and send what may be sent."""
            for event in connection.receive_data(sock.recv(1 << 16)):
                if isinstance(event, h2.events.TrailersReceived):
                    if dict(event.headers)[b"grpc-status"] == b"0":
                        good.add(event.stream_id)
                elif isinstance(event, h2.events.DataReceived):
                    connection.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
            sock.sendall(connection.data_to_send())

        def send(stream: int, keep: int) -> None:
            """Send of a stream what flow control allows, but for its last bytes."""
            while len(left[stream]) > keep:
                size = min(
                    connection.local_flow_control_window(stream),
                    connection.max_outbound_frame_size,
                    len(left[stream]) - keep,
                )
                if size <= 0:
                    turn()
                    continue
                connection.send_data(stream, left[stream][:size])
                left[stream] = left[stream][size:]
                sock.sendall(connection.data_to_send())

        connection.initiate_connection()
        sock.sendall(connection.data_to_send())
        turn()
        for _ in range(_CLIENTS):
            stream = connection.get_next_available_stream_id()
            connection.send_headers(stream, _FIELDS)
            left[stream] = body
            send(stream, len(body) // 2)

        def finish() -> int:
            for stream in left:
                send(stream, 0)
                connection.end_stream(stream)
                sock.sendall(connection.data_to_send())
            while len(good) < len(left):
                turn()
            return len(good)

        yield finish


_MAX_REQUESTS = 4
"""What each Triton gets at once, of all models. Half-sent requests are many more."""


def limited(tritons: Sequence[Triton]) -> dict[str, Any]:
    """Settings that give each Triton a limit of its own."""
    return {
        "backends": [
            {"name": each.name, "http": each.http, "grpc": each.grpc, "max_requests": _MAX_REQUESTS}
            for each in tritons
        ]
    }


def until_no_place_is_taken(balancer: Balancer) -> None:
    """Wait until `/api/v1/queue` says that no request is queued, and that those in flight at all
    Tritons count against no limit."""

    def is_so() -> bool:
        connection.request("GET", "/api/v1/queue")
        (model,) = json.loads(connection.getresponse().read())["models"]
        rows = model["backends"]
        return not model["waiting"] and (
            sum(row["backend_in_flight"] for row in rows)
            == sum(row["backend_set_aside"] for row in rows)
        )

    with closing(HTTPConnection(balancer.admin, timeout=_PATIENCE_S)) as connection:
        wait_until(is_so, timeout_s=4 * _PATIENCE_S, what="no place is taken")


@pytest.mark.parametrize("slow", [slow_http, slow_grpc])
def test_half_sent_requests_keep_nobody_waiting(
    slow: Callable[[Balancer], AbstractContextManager[Finish]],
) -> None:
    with (
        simulated(2) as tritons,
        running(tritons, limited(tritons)) as balancer,
        slow(balancer) as finish,
    ):
        for _ in range(5):
            assert infers_well(balancer)
        until_no_place_is_taken(balancer)
        assert finish() == _CLIENTS
        until_no_place_is_taken(balancer)


_RESPONSE_ELEMENTS = 1_000_000
"""The size of a tensor that no socket buffers: 4 MB."""


@contextmanager
def unread_http(balancer: Balancer) -> Iterator[None]:
    """Connections whose inferences were executed and whose responses nobody reads."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [_RESPONSE_ELEMENTS]}
    size = {"parameters": {"binary_data_size": 4 * _RESPONSE_ELEMENTS}}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor | size], "outputs": outputs})
    body = head.encode() + bytes(4 * _RESPONSE_ELEMENTS)
    lines = (
        f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\n"
        f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(_CLIENTS):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(_PATIENCE_S)
            sock.connect(address(balancer.http))
            sock.sendall(lines.encode() + body)
            assert sock.recv(12) == b"HTTP/1.1 200"
        yield


@contextmanager
def unread_grpc(balancer: Balancer) -> Iterator[None]:
    """Calls that were executed, on one connection that credits nothing of their responses."""
    body = grpc_inference()
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    begun: set[int] = set()
    with socket.create_connection(address(balancer.grpc), timeout=_PATIENCE_S) as sock:
        connection.initiate_connection()
        connection.increment_flow_control_window(1 << 30)
        sock.sendall(connection.data_to_send())

        def turn() -> None:
            """Read once, and credit no stream."""
            for event in connection.receive_data(sock.recv(1 << 16)):
                if isinstance(event, h2.events.ResponseReceived):
                    begun.add(event.stream_id)
            sock.sendall(connection.data_to_send())

        turn()
        for _ in range(_CLIENTS):
            stream = connection.get_next_available_stream_id()
            connection.send_headers(stream, _FIELDS)
            left = body
            while left:
                size = min(
                    connection.local_flow_control_window(stream),
                    connection.max_outbound_frame_size,
                    len(left),
                )
                if size <= 0:
                    turn()
                    continue
                connection.send_data(stream, left[:size], end_stream=size == len(left))
                left = left[size:]
                sock.sendall(connection.data_to_send())
            while stream not in begun:
                turn()
        yield


@pytest.mark.parametrize("unread", [unread_http, unread_grpc])
def test_unread_responses_keep_nobody_waiting(
    unread: Callable[[Balancer], AbstractContextManager[None]],
) -> None:
    with simulated(2) as tritons, running(tritons) as balancer, unread(balancer):
        for _ in range(5):
            assert infers_well(balancer)
