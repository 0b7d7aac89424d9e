"""Clients that send half of their requests and no more keep nobody from idle Tritons."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import h2.config
import h2.connection
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import Balancer, running, simulated

_ELEMENTS = 100_000
"""The size of an FP32 tensor: 400 KB, more than is held back before a request begins."""
_CLIENTS = 40
_PATIENCE_S = 15.0
"""How long a good client waits. Without any care it would take minutes."""

Finish = Callable[[], int]
"""Sends the rest of the slow requests; gives how many were answered well."""


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


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
            return sum(each.getresponse().status == 200 for each in connections)

        yield finish


@contextmanager
def slow_grpc(balancer: Balancer) -> Iterator[Finish]:
    """One connection with calls of which half has been sent."""
    message = pb.ModelInferRequest(model_name="identity_fp32")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[_ELEMENTS])
    message.raw_input_contents.append(bytes(4 * _ELEMENTS))
    content = message.SerializeToString()
    body = struct.pack(">xI", len(content)) + content
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/inference.GRPCInferenceService/ModelInfer"),
        (":authority", "a"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
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
            connection.send_headers(stream, fields)
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


@pytest.mark.parametrize("slow", [slow_http, slow_grpc])
def test_half_sent_requests_keep_nobody_waiting(
    slow: Callable[[Balancer], Iterator[Finish]],
) -> None:
    good = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    )
    with simulated(2) as tritons, running(tritons) as balancer, slow(balancer) as finish:
        for _ in range(5):
            connection = HTTPConnection(balancer.http, timeout=_PATIENCE_S)
            connection.request("POST", "/v2/models/identity_fp32/infer", good)
            assert connection.getresponse().status == 200
            connection.close()
        assert finish() == _CLIENTS
