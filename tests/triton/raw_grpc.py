"""gRPC without generated code: messages as bytes, and HTTP/2 heads as they stood on the wire."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.triton.target import WAIT_S

SERVICE = "/inference.GRPCInferenceService/"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True)
class CallOutcome:
    """All that grpcio shows of a finished call."""

    code: grpc.StatusCode
    details: str
    initial_metadata: Metadata
    trailing_metadata: Metadata
    messages: tuple[bytes, ...]


def _outcome(call: grpc.Call, messages: Sequence[bytes]) -> CallOutcome:
    return CallOutcome(
        call.code(),
        call.details(),
        tuple((entry.key, entry.value) for entry in call.initial_metadata()),
        tuple((entry.key, entry.value) for entry in call.trailing_metadata()),
        tuple(messages),
    )


def call_unary(
    address: str, method: str, request: bytes, *, metadata: Metadata = (), timeout_s: float = WAIT_S
) -> CallOutcome:
    """One unary call; `method` is a path, or a name of Triton's service."""
    path = method if method.startswith("/") else SERVICE + method
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        call = channel.unary_unary(path).future(request, timeout=timeout_s, metadata=metadata)
        error = call.exception()
        return _outcome(call, [] if error else [call.result()])


def call_stream(
    address: str,
    method: str,
    requests: Sequence[bytes],
    *,
    metadata: Metadata = (),
    timeout_s: float = WAIT_S,
) -> CallOutcome:
    """One call with a stream each way, read to its end."""
    messages = []
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        call = channel.stream_stream(SERVICE + method)(
            iter(requests), timeout=timeout_s, metadata=metadata
        )
        try:
            messages.extend(call)
        except grpc.RpcError:
            pass  # the outcome says it
        return _outcome(call, messages)


@dataclass
class WireOutcome:
    """The frames of one call, without what belongs to the connection."""

    heads: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytes = b""
    reset: int | None = None


def call_on_the_wire(
    address: str, method: str, request: bytes, *metadata: tuple[str, str]
) -> WireOutcome:
    """One unary call in plain frames; the answer is read to END_STREAM or RST_STREAM.

    `metadata` goes out as it is, whatever gRPC would make of it.
    """
    host, _, port = address.rpartition(":")
    prefixed = struct.pack("!BI", 0, len(request)) + request
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", SERVICE + method),
        (":authority", "triton.test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *metadata,
    ]
    head = HeadersFrame(1, Encoder().encode(fields), flags=["END_HEADERS"])
    body = DataFrame(1, prefixed, flags=["END_STREAM"])
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        frames = (SettingsFrame(0), head, body)
        connection.sendall(preface + b"".join(frame.serialize() for frame in frames))
        return _read_answer(connection)


def _read_answer(connection: socket.socket) -> WireOutcome:
    outcome = WireOutcome()
    decoder = Decoder()
    decoder.max_allowed_table_size = 4096
    with connection.makefile("rb") as stream:
        while True:
            frame, length = Frame.parse_frame_header(memoryview(stream.read(9)))
            frame.parse_body(memoryview(stream.read(length)))
            if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                connection.sendall(SettingsFrame(0, flags=["ACK"]).serialize())
            elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
                connection.sendall(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())
            elif isinstance(frame, HeadersFrame):
                outcome.heads.append(decoder.decode(frame.data, raw=True))
            elif isinstance(frame, DataFrame):
                outcome.data += frame.data
                credit = WindowUpdateFrame(0, window_increment=frame.flow_controlled_length)
                connection.sendall(credit.serialize() if frame.flow_controlled_length else b"")
            elif isinstance(frame, RstStreamFrame):
                outcome.reset = frame.error_code
                return outcome
            elif isinstance(frame, GoAwayFrame):
                raise ConnectionError(f"GOAWAY {frame.error_code} {frame.additional_data!r}")
            if frame.stream_id == 1 and "END_STREAM" in frame.flags:
                return outcome
