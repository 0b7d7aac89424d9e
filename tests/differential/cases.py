"""What is sent to both sides: a case is data, can be printed, and can be played again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

Pair = tuple[bytes, bytes]
_ENCODING = "latin-1"
"""Of bytes in JSON: one character for each."""


@dataclass(frozen=True, kw_only=True)
class HttpCase:
    """One HTTP/1.1 request."""

    method: bytes
    target: bytes
    fields: tuple[Pair, ...] = ()
    body: bytes | None = None
    """None: there is none, and no field says so."""
    chunks: tuple[int, ...] = ()
    """Sizes of the chunks that the body is sent in, over and over; empty: with Content-Length."""
    version: bytes = b"HTTP/1.1"

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def wire(self) -> bytes:
        """The request as it is sent."""
        lines = [b"%b %b %b" % (self.method, self.target, self.version)]
        lines += [b"%b: %b" % field for field in self.fields]
        body = self.body or b""
        if self.body is not None and self.chunks:
            lines.append(b"Transfer-Encoding: chunked")
            body = self._chunked(body)
        elif self.body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join((*lines, b"", body))

    def _chunked(self, body: bytes) -> bytes:
        parts, at, number = [], 0, 0
        while at < len(body):
            part = body[at : at + self.chunks[number % len(self.chunks)]]
            parts.append(b"%x\r\n%b\r\n" % (len(part), part))
            at += len(part)
            number += 1
        return b"".join((*parts, b"0\r\n\r\n"))

    def field(self, name: bytes) -> bytes:
        """The first value of a field, in lower case; empty where there is none."""
        found = (value for present, value in self.fields if present.lower() == name)
        return next(found, b"").lower()


@dataclass(frozen=True, kw_only=True)
class GrpcCase:
    """One call."""

    path: bytes
    metadata: tuple[Pair, ...] = ()
    messages: tuple[bytes, ...] = ()
    """Without their prefixes."""
    compressed: bool = False
    """The prefixes say so; `messages` are as on the wire."""
    cut: int = 0
    """Bytes that the end of the last message lacks."""
    authority: bytes = b"triton.test"
    fresh: bool = False
    """On a connection of its own: its first block may refer to a dynamic table."""

    @property
    def method(self) -> str:
        return self.path.rpartition(b"/")[2].decode(_ENCODING)

    @property
    def is_stream(self) -> bool:
        return self.path.endswith(b"/ModelStreamInfer")

    @property
    def body(self) -> bytes:
        """All messages as they are sent."""
        flag = b"\1" if self.compressed else b"\0"
        body = b"".join(flag + len(m).to_bytes(4, "big") + m for m in self.messages)
        return body[: len(body) - self.cut]


Case = HttpCase | GrpcCase


def to_json(case: Case) -> str:
    """A case in one line of text."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(_ENCODING)
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    kind = "http" if isinstance(case, HttpCase) else "grpc"
    return json.dumps({"kind": kind} | {name: plain(v) for name, v in asdict(case).items()})


def from_json(text: str) -> Case:
    """What `to_json` has written."""

    def back(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode(_ENCODING)
        return tuple(map(back, value)) if isinstance(value, list) else value

    said = json.loads(text)
    kind: type[Case] = HttpCase if said.pop("kind") == "http" else GrpcCase
    return kind(**{name: back(value) for name, value in said.items()})


def smaller(case: Case) -> list[Case]:
    """Cases that lack something of this one, those that lack most first."""
    if isinstance(case, HttpCase):
        found: list[Case] = [replace(case, fields=each) for each in _without_one(case.fields)]
        if case.chunks:
            found.insert(0, replace(case, chunks=()))
        if case.body:
            found += [replace(case, body=each) for each in _shorter(case.body)]
        return found
    calls: list[Case] = []
    if not case.is_stream or len(case.messages) > 1:  # Triton 2.51 may die of an empty stream
        calls += [replace(case, messages=each) for each in _without_one(case.messages)]
    calls += [replace(case, metadata=each) for each in _without_one(case.metadata)]
    for number, message in enumerate(case.messages):
        if not case.is_stream:
            before, after = case.messages[:number], case.messages[number + 1 :]
            calls += [replace(case, messages=(*before, m, *after)) for m in _shorter(message)]
    return calls


def _without_one(parts: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [parts[:number] + parts[number + 1 :] for number in range(len(parts))]


def _shorter(text: bytes) -> list[bytes]:
    half = len(text) // 2
    parts = (b"", text[:half], text[half:], text[:-1])
    return [part for part in dict.fromkeys(parts) if len(part) < len(text)]
