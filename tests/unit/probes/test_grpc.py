from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from lb.domain.backend import Address
from lb.health.port import Finding
from lb.probes.grpc import GrpcCall
from lb.probes.plan import NO_BACKEND_READY, ProbeAnswer, ProbePlan, ProbeQuestion
from lb.wire.http2 import frames

ADDRESS = Address(host="127.0.0.1", port=8001)
OPEN = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0"), ("grpc-message", "")]
READY_MESSAGE = b"\0\0\0\0\x02\x08\x01"
EMPTY_MESSAGE = b"\0\0\0\0\0"


def make_plan(
    question: ProbeQuestion = ProbeQuestion.SERVER_READY,
    *,
    address: Address = ADDRESS,
    headers: tuple[tuple[str, str], ...] = (),
) -> ProbePlan:
    return ProbePlan(question=question, address=address, headers=headers)


class Server:
    """An independent HTTP/2 server that has read the whole opening."""

    def __init__(self, plan: ProbePlan) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.http2.initiate_connection()
        self.headers: list[tuple[str, str]] = []
        self.message = b""
        self.ended = False
        for event in self.http2.receive_data(GrpcCall(plan).opening()):
            if isinstance(event, RequestReceived):
                self.headers = [(str(name), str(value)) for name, value in event.headers or []]
            elif isinstance(event, DataReceived):
                self.message += event.data or b""
            elif isinstance(event, StreamEnded):
                self.ended = True


def reply_bytes(write: Callable[[H2Connection], None]) -> bytes:
    server = Server(make_plan())
    write(server.http2)
    return server.http2.data_to_send()


def answer_to(*pieces: bytes) -> ProbeAnswer | None:
    client_call = GrpcCall(make_plan())
    client_call.opening()
    for piece in pieces:
        if client_call.answer is None:
            client_call.receive(piece)
    return client_call.answer


def unary(message: bytes) -> Callable[[H2Connection], None]:
    def write(http2: H2Connection) -> None:
        http2.send_headers(1, OPEN)
        http2.send_data(1, message)
        http2.send_headers(1, OK, end_stream=True)

    return write


def trailers_only(status: str, message: str) -> Callable[[H2Connection], None]:
    def write(http2: H2Connection) -> None:
        fields = [*OPEN, ("grpc-status", status), ("grpc-message", message)]
        http2.send_headers(1, fields, end_stream=True)

    return write


def busy_and_padded(http2: H2Connection) -> None:
    http2.ping(b"12345678")
    http2.send_headers(1, [*OPEN, *[(f"x-{at}", 4000 * "y") for at in range(5)]])
    http2.send_data(1, READY_MESSAGE, pad_length=17)
    http2.increment_flow_control_window(1000)
    http2.send_headers(1, OK, end_stream=True)


def leaving_without_this_call(http2: H2Connection) -> None:
    http2.close_connection(last_stream_id=0)


def not_found(http2: H2Connection) -> None:
    http2.send_headers(1, [(":status", "404")], end_stream=True)


def reset(http2: H2Connection) -> None:
    http2.reset_stream(1, 2)


def no_status(http2: H2Connection) -> None:
    http2.send_headers(1, OPEN)
    http2.send_data(1, READY_MESSAGE, end_stream=True)


REPLIES = [
    (unary(READY_MESSAGE), Finding.READY, ""),
    (busy_and_padded, Finding.READY, ""),
    (unary(EMPTY_MESSAGE), Finding.MODELS_NOT_READY, "it says that it is not ready"),
    (unary(b"\0\0\0\0\x02\x08\x02"), Finding.MODELS_NOT_READY, "it says that it is not ready"),
    (
        trailers_only("14", "Server%20exiting"),
        Finding.NOT_READY,
        "UNAVAILABLE: Server exiting",
    ),
    (trailers_only("12", ""), Finding.NOT_READY, "UNIMPLEMENTED"),
    (trailers_only("77", "?"), Finding.NOT_READY, "77: ?"),
    (leaving_without_this_call, Finding.ERROR, "the server goes away"),
    (not_found, Finding.ERROR, "HTTP status 404"),
    (reset, Finding.ERROR, "the call was reset"),
    (no_status, Finding.ERROR, "the call ended without a status"),
]


@pytest.mark.parametrize(("write", "finding", "detail"), REPLIES)
def test_answers_at_every_split_point(
    write: Callable[[H2Connection], None], finding: Finding, detail: str
) -> None:
    reply = reply_bytes(write)
    expected = ProbeAnswer(finding, detail)
    step = max(1, len(reply) // 60)
    for at in range(0, len(reply) + 1, step):
        assert answer_to(reply[:at], reply[at:]) == expected
    if len(reply) < 1000:
        assert answer_to(*(bytes((byte,)) for byte in reply)) == expected


def test_a_server_that_leaves_after_this_call_is_heard_out() -> None:
    reply = reply_bytes(unary(READY_MESSAGE))
    settings_end = 9 + int.from_bytes(reply[:3], "big")
    goaway = frames.goaway(2**31 - 1, 0)
    reply = reply[:settings_end] + goaway + reply[settings_end:]
    assert answer_to(reply) == ProbeAnswer(Finding.READY)


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is not HTTP/2"),
        (b"\0\0\x08\x06\0\0\0\0\0" + 8 * b"x", "the answer is not HTTP/2"),
        (b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x02\x01\x05\0\0\0\x01\xff\xff",
         "header block cannot be decoded"),
        (b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x04\x07\0\0\0\0\0\0\0\0\0", "bad GOAWAY"),
        (b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x01\x01\x0d\0\0\0\x01\x09",
         "the call ended without a status"),
        (b"\0\0\0\x04\0\0\0\0\0" + 20 * (b"\0\x40\0\0\0\0\0\0\x01" + 16384 * b"x"),
         "endless answer"),
        (b"\0\0\0\x04\0\0\0\0\0" + 20 * (b"\0\x40\0\x09\0\0\0\0\x01" + 16384 * b"x"),
         "the head or the trailers of the answer are too large"),
    ],
)  # fmt: skip
def test_a_broken_answer_is_an_error(reply: bytes, detail: str) -> None:
    assert answer_to(reply) == ProbeAnswer(Finding.ERROR, detail)


@pytest.mark.parametrize(
    ("question", "path"),
    [
        (ProbeQuestion.SERVER_READY, "/inference.GRPCInferenceService/ServerReady"),
        (ProbeQuestion.GRPC_HEALTH, "/grpc.health.v1.Health/Check"),
    ],
)
def test_the_opening_is_a_whole_unary_call(question: ProbeQuestion, path: str) -> None:
    server = Server(make_plan(question))
    fields = dict(server.headers)
    assert fields[":path"] == path
    assert fields[":method"] == "POST"
    assert fields[":authority"] == "127.0.0.1:8001"
    assert fields["te"] == "trailers"
    assert fields["content-type"] == "application/grpc"
    assert server.message == EMPTY_MESSAGE
    assert server.ended


def test_own_headers_become_metadata_and_host_the_authority() -> None:
    headers = (("Authorization", "Bearer x"), ("Host", "triton.internal"))
    fields = dict(Server(make_plan(headers=headers)).headers)
    assert fields["authorization"] == "Bearer x"
    assert fields[":authority"] == "triton.internal"
    assert "host" not in fields


def test_the_authority_of_a_unix_socket_is_localhost() -> None:
    plan = make_plan(address=Address(path="/run/triton.sock"))
    assert dict(Server(plan).headers)[":authority"] == "localhost"


def test_settings_and_pings_are_acknowledged() -> None:
    server = Server(make_plan())
    server.http2.ping(b"12345678")
    client_call = GrpcCall(make_plan())
    events = server.http2.receive_data(client_call.receive(server.http2.data_to_send()))
    names = [type(event).__name__ for event in events]
    assert names == ["SettingsAcknowledged", "PingAckReceived"]
    assert client_call.receive(b"") == b""


def test_acknowledgements_go_out_once_however_the_frames_arrive() -> None:
    server = Server(make_plan())
    server.http2.ping(b"12345678")
    data = server.http2.data_to_send()
    whole = GrpcCall(make_plan()).receive(data)
    for step in (1, 3, 9, 17):
        client_call = GrpcCall(make_plan())
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        assert b"".join(map(client_call.receive, pieces)) == whole


@pytest.mark.parametrize(
    ("message", "finding"),
    [
        (b"\x0a\x04\x08\x01\x10\x1e", Finding.READY),
        (b"\x0a\x04\x08\x01\x10\x14", Finding.NOT_READY),
    ],
)
def test_a_model_is_healthy_when_a_version_is_available(message: bytes, finding: Finding) -> None:
    plan = dataclasses.replace(make_plan(ProbeQuestion.MODEL_STATUS_CALL), model="half")
    server = Server(plan)
    assert dict(server.headers)[":path"] == "/tensorflow.serving.ModelService/GetModelStatus"
    assert server.message == b"\0\0\0\0\x08\x0a\x06\x0a\x04half"
    client_call = GrpcCall(plan)
    client_call.opening()
    unary(bytes([0, 0, 0, 0, len(message)]) + message)(server.http2)
    client_call.receive(server.http2.data_to_send())
    assert client_call.answer is not None
    assert client_call.answer.finding is finding


def test_a_balancer_says_that_none_of_its_backends_is_ready() -> None:
    def reply(server: H2Connection) -> None:
        field = ("triton-lb-ready-through", "triton-lb-0123456789abcdef")
        server.send_headers(1, [*OPEN, field])
        server.send_data(1, bytes(5))
        server.send_headers(1, OK, end_stream=True)

    assert answer_to(reply_bytes(reply)) == NO_BACKEND_READY


def test_a_balancer_says_through_whom_it_is_ready() -> None:
    own, other = (b"triton-lb-%016x" % number for number in range(2))
    plan = ProbePlan(question=ProbeQuestion.SERVER_READY, address=ADDRESS, identity=own)
    assert ("cdn-loop", own.decode()) in Server(plan).headers

    def reply(server: H2Connection) -> None:
        server.send_headers(1, [*OPEN, ("triton-lb-ready-through", other.decode())])
        server.send_data(1, READY_MESSAGE)
        server.send_headers(1, OK, end_stream=True)

    assert answer_to(reply_bytes(reply)) == ProbeAnswer(Finding.READY, "", (other,))
