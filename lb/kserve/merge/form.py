"""What all merges share: their shape, and JSON as Triton writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

ReadT = TypeVar("ReadT")
MessageT = TypeVar("MessageT", bound=Message)

Json = dict[str, Any]

MOST_BYTES: Final = 16 * 2**20
"""Longest answer that is merged: the statistics of ten thousand models have 10 MiB."""
_MOST_PARTS: Final = 2**22
"""Brackets and commas in it: what JSON stands for may take thirty times its size in memory."""


class Disagreement(Exception):
    """The servers say what no single server could say."""


class Merge(Protocol[ReadT]):
    """Reads the answers of one operation in one protocol, and makes one of them."""

    def read(self, body: bytes) -> ReadT:
        """Read one answer.

        Raises:
            ValueError: it is no such answer.
        """
        ...

    def combine(self, answers: Sequence[tuple[str, ReadT]]) -> bytes:
        """Make one of at least one; each comes with the name of its backend.

        Raises:
            Disagreement: they contradict each other.
        """
        ...


def require_moderate(body: bytes) -> None:
    """Refuse an answer that would take too much memory and time when it is read.

    Raises:
        ValueError: it is too long, or has too many parts.
    """
    if len(body) > MOST_BYTES or sum(map(body.count, (b"{", b"[", b","))) > _MOST_PARTS:
        raise ValueError("the answer is too long to be merged")


def read_object(body: bytes) -> Json:
    """A JSON object.

    Raises:
        ValueError: it is something else.
    """
    found = _read_json(body)
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")
    return found


def read_objects(body: bytes) -> list[Json]:
    """A JSON array of objects.

    Raises:
        ValueError: it is something else.
    """
    found = _read_json(body)
    if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
        raise ValueError("the answer is no JSON array of objects")
    return found


def _read_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is no JSON that can be read") from error


def write_json(value: object) -> bytes:
    """JSON without spaces, names in the order in which they stand, as Triton writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    # Text that is not Unicode comes from the answers themselves.
    return text.encode(errors="surrogatepass")


def read_message(kind: type[MessageT], body: bytes) -> MessageT:
    """A protobuf message.

    Raises:
        ValueError: it is none.
    """
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise ValueError("the answer cannot be parsed") from error
