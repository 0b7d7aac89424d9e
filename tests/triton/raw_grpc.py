"""gRPC without generated code: messages as bytes, and HTTP/2 heads as they stood on the wire."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from hpack import Decoder

from tests.triton.target import WAIT_S
from tests.wire import frames as fr

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
    fields = fr.request_fields(
        *((name.encode(), value.encode()) for name, value in metadata),
        path=(SERVICE + method).encode(),
    )
    return call_with_block(address, fr.literals(fields), fr.message(request))


def call_with_block(address: str, block: bytes, message: bytes) -> WireOutcome:
    """One unary call with a header block as it is; the answer is read to its end."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(
            fr.PREFACE + fr.settings() + fr.headers(1, block) + fr.data(1, message, end=True)
        )
        return _read_answer(connection)


def _read_answer(connection: socket.socket) -> WireOutcome:
    outcome = WireOutcome()
    decoder = Decoder()
    reader = fr.FrameReader()
    while received := connection.recv(65_536):
        for found in reader.feed(received):
            connection.sendall(fr.due_reply(found))
            if found.kind == fr.HEADERS:
                outcome.heads.append(decoder.decode(found.payload, raw=True))
            elif found.kind == fr.DATA:
                outcome.data += found.payload
                credit = fr.window_update(0, len(found.payload))
                connection.sendall(credit if found.payload else b"")
            elif found.kind == fr.RST_STREAM:
                outcome.reset = found.code
                return outcome
            elif found.kind == fr.GOAWAY:
                raise ConnectionError(f"GOAWAY {found.code} {found.payload[8:]!r}")
            if found.stream == 1 and found.ends_stream:
                return outcome
    raise ConnectionError("closed before the answer had ended")
