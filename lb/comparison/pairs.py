"""Two answers to one request on their way to the process that compares them.

A frame is four bytes of length, so much JSON, then both bodies and the request, if it is to be
kept. One without JSON, `REPORT`, asks for what was found in the frames before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

LENGTH_SIZE: Final = 4
REPORT: Final = bytes(LENGTH_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as the same."""

    atol: float
    rtol: float
    top_k: int
    examples: str = ""
    """Folder for requests whose answers differ; empty keeps none."""

    def as_json(self) -> dict[str, Any]:
        """Return the arguments that make them."""
        return {
            "atol": self.atol,
            "rtol": self.rtol,
            "top_k": self.top_k,
            "examples": self.examples,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedAnswer:
    """One answer."""

    status: int
    """The status of HTTP or gRPC."""
    body: bytes
    """What it holds; with gRPC the message without its prefix."""
    json_size: int = -1
    """Bytes of the body that are JSON, with HTTP; -1: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two answers to one request."""

    shadow: int
    """The number of the shadow that it belongs to."""
    name: str
    """That the client asked for."""
    is_noise: bool
    """Both are of the model that serves the name."""
    id: str
    """Of the request."""
    is_grpc: bool
    rules: Rules
    first: ComparedAnswer
    """That the client got."""
    second: ComparedAnswer
    request: bytes = b""
    """Its body, where it is to be kept."""

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return len(self.first.body) + len(self.second.body) + len(self.request)


def pack(pair: Pair) -> list[bytes]:
    """Return the frame of a pair in pieces."""
    head = json.dumps(
        {
            "shadow": pair.shadow,
            "name": pair.name,
            "is_noise": pair.is_noise,
            "id": pair.id,
            "is_grpc": pair.is_grpc,
            "rules": pair.rules.as_json(),
            "first": [pair.first.status, pair.first.json_size, len(pair.first.body)],
            "second": [pair.second.status, pair.second.json_size, len(pair.second.body)],
            "request": len(pair.request),
        }
    ).encode()
    length = len(head).to_bytes(LENGTH_SIZE, "big")
    return [length + head, pair.first.body, pair.second.body, pair.request]


class Reader:
    """Reads frames from a blocking file."""

    def __init__(self, file: Any) -> None:
        """
        Args:
            file: binary and buffered; `read` returns less only at its end.
        """
        self._file = file

    def next(self) -> Pair | Literal["report"] | None:
        """Return the next pair, or that a report is wanted; None at the end, also in the middle of
        a frame."""
        size = self._file.read(LENGTH_SIZE)
        if len(size) < LENGTH_SIZE:
            return None
        if size == REPORT:
            return "report"
        text = self._file.read(int.from_bytes(size, "big"))
        try:
            head = json.loads(text)
        except ValueError:  # cut off
            return None
        first, second = self._reply(head.pop("first")), self._reply(head.pop("second"))
        length = head.pop("request")
        request = self._file.read(length)
        if first is None or second is None or len(request) < length:
            return None
        rules = Rules(**head.pop("rules"))
        return Pair(rules=rules, first=first, second=second, request=request, **head)

    def _reply(self, described: list[int]) -> ComparedAnswer | None:
        status, json_size, size = described
        body = self._file.read(size)
        if len(body) < size:
            return None
        return ComparedAnswer(status=status, body=body, json_size=json_size)
