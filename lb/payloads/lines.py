"""The lines of the payload log: what one inference becomes.

An inference is two lines, its request and its response; on a stream each message is one. Each is
an event in the JSON format of CloudEvents 1.0, with the attributes and types of KServe's inference
logger. What can be read stands in `data`, and everything else in `data_base64`, which CloudEvents
has for binary data; a reader never has to guess. Why data is missing stands in `omitted`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from lb.domain.backend import AppProtocol
from lb.kserve.payloads import (
    Json,
    Part,
    leave_out,
    read_grpc_request,
    read_grpc_response,
    read_grpc_stream_response,
    read_http,
    read_json,
)
from lb.telemetry.labels import code_label
from lb.wire.grpc.compression import inflated
from lb.wire.grpc.message import PREFIX_SIZE

REQUEST: Final = "org.kubeflow.serving.inference.request"
RESPONSE: Final = "org.kubeflow.serving.inference.response"
"""Types of events, from KServe's `pkg/logger/worker.go`."""
_SOURCE: Final = "triton-lb"
_COMPONENT: Final = "predictor"
_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_GRPC: Final = "application/grpc+proto"
_KSERVE: Final = b"/inference.GRPCInferenceService/"
STREAM_PATH: Final = _KSERVE + b"ModelStreamInfer"
_GZIP: Final = b"\x1f\x8b"
_FIELDS: Final = frozenset({
    b"content-encoding", b"content-type", b"inference-header-content-length",
})  # fmt: skip
_ENCODINGS: Final = frozenset({"gzip", "deflate"})


class Omitted(StrEnum):
    """Why a line has no data."""

    TOO_LARGE = "too_large"
    """It is larger than `payload_log.max_payload_bytes`."""
    LEFT_OUT = "left_out"
    """`payload_log.leave_out` has names, and whether one is in there cannot be told."""
    INCOMPLETE = "incomplete"
    """It is not a whole message: the request was cut short."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A request or a response as it went over the wire."""

    head: bytes
    """Head of HTTP; empty for gRPC."""
    pieces: tuple[bytes, ...] | None
    """The body; None where it was too large to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PayloadRecord:
    """One inference that is over, or one message of a stream."""

    id: str
    """The id of the request, or of the stream."""
    protocol: AppProtocol
    path: bytes
    model: bytes
    backend: str
    """Name of the one that answered; empty without one."""
    status: int
    """Of HTTP or gRPC, as in `RequestRecord`."""
    reason: str
    """Why triton-lb answered itself or cut it short; empty where it did not."""
    started_at: float
    """Unix time in seconds."""
    ended_at: float
    """Unix time in seconds."""
    request: Payload | None
    response: Payload | None
    """Of a message of a stream, one of both is None."""
    leave_out: frozenset[str]
    max_bytes: int
    """What is inflated may be as large."""

    def lines(self) -> bytes:
        """All lines, newlines included."""
        lines = b""
        if self.request is not None:
            lines += self._line(REQUEST, self.request)
        if self.response is not None:
            lines += self._line(RESPONSE, self.response)
        return lines

    @property
    def is_of_stream(self) -> bool:
        """Whether it is a message of a `ModelStreamInfer`."""
        return self.path == STREAM_PATH

    def _line(self, kind: str, payload: Payload) -> bytes:
        is_request = kind is REQUEST
        event: Json = {
            "specversion": "1.0",
            "id": self.id,
            "source": _SOURCE,
            "type": kind,
            "time": _time(self.started_at if is_request else self.ended_at),
            "inferenceservicename": _text(self.model),
            "component": _COMPONENT,
            "protocol": self.protocol.label,
            "path": _text(self.path),
        }
        if not is_request:
            event["status"] = code_label(self.protocol, self.status)
            event["backend"] = self.backend
            if self.reason:
                event["reason"] = self.reason
        reader = _Reader(self, payload, "inputs" if is_request else "outputs")
        try:
            data = reader.read()
        except ValueError:
            data = reader.as_binary()
        if reader.message_id:
            event["id"] = f"{self.id}/{reader.message_id}"
        event |= reader.attributes
        line = json.dumps(event, separators=(",", ":"), allow_nan=False)
        return f"{line[:-1]}{data}}}\n".encode()


class _Reader:
    """Reads the payload of one line."""

    def __init__(self, record: PayloadRecord, payload: Payload, part: Part) -> None:
        self._record = record
        self._part: Part = part
        self._is_grpc = record.protocol is AppProtocol.GRPC
        self._fields = _read_fields(payload.head)
        self._body = None if payload.pieces is None else b"".join(payload.pieces)
        self.attributes: Json = {}
        """What is known of the payload beside its data."""
        self.message_id = ""
        """By which a message of a stream names its request."""

    def read(self) -> str:
        """Return the member with the data, with a comma before it; empty without data.

        Raises:
            ValueError: the data cannot be read.
        """
        body = self._body
        if body is None:
            return self._omit(Omitted.TOO_LARGE)
        if not body:
            return ""
        body = self._open(body)
        if self._is_grpc:
            return self._shown(self._read_message(body))
        kind = self._fields.get(b"content-type", "").partition(";")[0].strip().lower()
        json_size = self._json_size()
        if json_size is not None:
            if not json_size:
                self.attributes["inferenceheadercontentlength"] = 0
                raise ValueError("raw binary")
            return self._shown(read_http(body, json_size, self._part))
        if kind.startswith("text/") and not self._record.leave_out:
            self.attributes["datacontenttype"] = kind
            return f',"data":{json.dumps(body.decode())}'
        payload = read_json(body)
        if self._record.leave_out:
            if not isinstance(payload, dict):
                raise ValueError("no object")
            return self._shown(payload)
        self.attributes["datacontenttype"] = _JSON
        # No JSON text has a line end within a string, so that as it came it fits into a line.
        return f',"data":{body.decode().replace(chr(13), " ").replace(chr(10), " ")}'

    def as_binary(self) -> str:
        """As `read`, for data that cannot be read."""
        if self._record.leave_out:
            return self._omit(Omitted.LEFT_OUT)
        if self._body is None or self.attributes.get("omitted"):
            return ""
        kind = _GRPC if self._is_grpc else self._fields.get(b"content-type", _BINARY)
        self.attributes["datacontenttype"] = kind
        return f',"data_base64":"{b64encode(self._body).decode()}"'

    def _omit(self, why: Omitted) -> str:
        self.attributes["omitted"] = why.value
        return ""

    def _open(self, body: bytes) -> bytes:
        """The payload without compression and framing."""
        encoding = ""
        if self._is_grpc:
            if len(body) != PREFIX_SIZE + int.from_bytes(body[1:PREFIX_SIZE], "big"):
                self._omit(Omitted.INCOMPLETE)
                raise ValueError("not one whole message")
            is_compressed, body = body[0], body[PREFIX_SIZE:]
            self._body = body
            if is_compressed:
                encoding = "gzip" if body.startswith(_GZIP) else "deflate"
        else:
            encoding = self._fields.get(b"content-encoding", "").strip().lower()
        if encoding and encoding != "identity":
            self.attributes["contentencoding"] = encoding
            opened = inflated(body, self._record.max_bytes) if encoding in _ENCODINGS else None
            if opened is None:
                raise ValueError("cannot be inflated")
            body = opened
        return body

    def _json_size(self) -> int | None:
        """How much of a body is JSON that tensors follow; None where all of it may be."""
        text = self._fields.get(b"inference-header-content-length")
        return None if text is None else int(text)

    def _read_message(self, message: bytes) -> Json:
        if not self._record.path.startswith(_KSERVE):
            raise ValueError("of another service")
        read: Callable[[bytes], Json] = read_grpc_request
        if self._part == "outputs":
            is_of_stream = self._record.is_of_stream
            read = read_grpc_stream_response if is_of_stream else read_grpc_response
        payload = read(message)
        if self._record.is_of_stream:
            self.message_id = payload.get("id", "")
        return payload

    def _shown(self, payload: dict[str, Any]) -> str:
        if self._record.leave_out:
            leave_out(payload, self._record.leave_out)
        self.attributes["datacontenttype"] = _JSON
        return f',"data":{json.dumps(payload, separators=(",", ":"), allow_nan=False)}'


def _read_fields(head: bytes) -> dict[bytes, str]:
    """The fields of a head that say what its body is; of repeated ones the first."""
    found: dict[bytes, str] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if (name := name.lower()) in _FIELDS:
            found.setdefault(name, _text(value.strip()))
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _time(at: float) -> str:
    """Unix time as RFC 3339."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
