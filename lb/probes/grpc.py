"""A unary gRPC call with a small request, on an HTTP/2 connection of its own.

`grpc.aio` costs 1.5 ms of CPU for a call on a fresh channel, seven times as much as this, and
says "refused" only in prose (docs/decisions/0005-health-rules.md).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from hpack import Decoder
from hpack.exceptions import HPACKError

from lb.health.port import Finding
from lb.kserve.tfserving import MODEL_STATUS_METHOD, is_available, status_request
from lb.probes.plan import Answer, ProbePlan, Question
from lb.wire.grpc.message import PREFIX_SIZE, frame_message
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2 import frames
from lb.wire.http2.fields import encode_field

_METHODS: Final = {
    Question.SERVER_READY: b"/inference.GRPCInferenceService/ServerReady",
    Question.GRPC_HEALTH: b"/grpc.health.v1.Health/Check",
    Question.MODEL_STATUS_CALL: MODEL_STATUS_METHOD,
}
_STREAM: Final = 1
_YES: Final = b"\x08\x01"
"""Field 1 is 1: `ServerReadyResponse.ready` is true, `HealthCheckResponse.status` is SERVING."""
_HEADS_LIMIT: Final = 65_536
_MESSAGE_LIMIT: Final = 65_536
_NAMES: Final = {str(code.value): code.name for code in GrpcStatus}


class GrpcCall:
    """One call on a connection of its own (RFC 9113, "gRPC over HTTP2")."""

    def __init__(self, plan: ProbePlan) -> None:
        self.answer: Answer | None = None
        self._plan = plan
        self._received = b""
        self._greeted = False
        self._decoder = Decoder()
        self._block = b""
        """Header block of a HEADERS frame that goes on in CONTINUATION frames."""
        self._block_ends_stream = False
        self._message = b""

    def opening(self) -> bytes:
        """Preface, settings and the whole request: nothing in it depends on the peer."""
        headers = self._plan.headers
        local = "localhost" if self._plan.address.path else str(self._plan.address)
        authority = next((value for name, value in headers if name.lower() == "host"), local)
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self._plan.tls else b"http"),
            (b":path", _METHODS[self._plan.question]),
            (b":authority", authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"triton-lb"),
            *((k.lower().encode(), v.encode()) for k, v in headers if k.lower() != "host"),
        ]
        block = b"".join(encode_field(name, value) for name, value in fields)
        asks_for_model = self._plan.question is Question.MODEL_STATUS_CALL
        message = frame_message(
            status_request(self._plan.model.encode()) if asks_for_model else b""
        )
        return b"".join(
            (
                frames.PREFACE,
                frames.settings({frames.SETTINGS_ENABLE_PUSH: 0}),
                frames.header_frames(
                    _STREAM, block, end_stream=False, frame_size=frames.MIN_FRAME_SIZE
                ),
                frames.frame_header(len(message), frames.DATA, frames.END_STREAM, _STREAM),
                message,
            )
        )

    def receive(self, data: bytes) -> bytes:
        """Take the complete frames; returns acknowledgements."""
        self._received += data
        replies: list[bytes] = []
        while self.answer is None and len(self._received) >= frames.HEADER_SIZE:
            kind, flags = self._received[3:5]
            stream = frames.read_u32(self._received, 5) & frames.STREAM_MASK
            end = frames.HEADER_SIZE + int.from_bytes(self._received[:3], "big")
            if end > frames.HEADER_SIZE + frames.MIN_FRAME_SIZE or not (
                self._greeted or kind == frames.SETTINGS
            ):
                self._fail("the answer is not HTTP/2")
            elif len(self._received) < end:
                break
            else:
                self._greeted = True
                payload = self._received[frames.HEADER_SIZE : end]
                self._received = self._received[end:]
                replies.append(self._take(kind, flags, stream, payload))
        return b"".join(replies)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == frames.SETTINGS and not flags & frames.ACK:
            return frames.SETTINGS_ACK
        if kind == frames.PING and not flags & frames.ACK:
            return frames.ping(payload, ack=True)
        if kind == frames.GOAWAY:
            self._take_goaway(payload)
        elif stream == _STREAM:
            self._take_stream_frame(kind, flags, payload)
        return b""

    def _take_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            self._fail("bad GOAWAY")
        elif frames.read_u32(payload) & frames.STREAM_MASK < _STREAM:
            self._fail("the server goes away")

    def _take_stream_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.RST_STREAM:
            self._fail("the call was reset")
            return
        if kind in (frames.HEADERS, frames.DATA) and flags & frames.PADDED:
            padding = payload[0] if payload else 0
            payload = payload[1 : len(payload) - padding]
        if kind == frames.HEADERS:
            if flags & frames.PRIORITY_FLAG:
                payload = payload[5:]
            self._block = payload
            self._block_ends_stream = bool(flags & frames.END_STREAM)
        elif kind == frames.CONTINUATION:
            self._block += payload
        elif kind == frames.DATA:
            self._message += payload
        if len(self._block) > _HEADS_LIMIT or len(self._message) > _MESSAGE_LIMIT:
            self._fail("endless answer")
        elif kind in (frames.HEADERS, frames.CONTINUATION) and flags & frames.END_HEADERS:
            self._take_block()
        elif kind == frames.DATA and flags & frames.END_STREAM:
            self._fail("the call ended without a status")

    def _take_block(self) -> None:
        try:
            decoded = self._decoder.decode(self._block, raw=True)
        except HPACKError:
            self._fail("header block cannot be decoded")
            return
        fields = {bytes(name): bytes(value).decode("latin-1") for name, value in decoded}
        if fields.get(b":status", "200") != "200":
            self._fail(f"HTTP status {fields[b':status']}")
        elif b"grpc-status" in fields:
            self._judge(fields[b"grpc-status"], unquote(fields.get(b"grpc-message", "")))
        elif self._block_ends_stream:
            self._fail("the call ended without a status")

    def _judge(self, status: str, message: str) -> None:
        if status != "0":
            text = (
                f"{_NAMES.get(status, status)}: {message}"
                if message
                else _NAMES.get(status, status)
            )
            self.answer = Answer(Finding.NOT_READY, text)
        elif self._plan.question is Question.MODEL_STATUS_CALL:
            self._judge_state()
        elif self._message[PREFIX_SIZE:].startswith(_YES):
            self.answer = Answer(Finding.READY)
        else:
            self.answer = Answer(Finding.MODELS_NOT_READY, "it says that it is not ready")

    def _judge_state(self) -> None:
        if is_available(self._message[PREFIX_SIZE:]):
            self.answer = Answer(Finding.READY)
        else:
            self.answer = Answer(Finding.NOT_READY, "no version of the model is available")

    def _fail(self, detail: str) -> None:
        self.answer = Answer(Finding.ERROR, detail)
