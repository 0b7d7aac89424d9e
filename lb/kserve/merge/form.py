"""What all merges share: their shape, and JSON as Triton writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from lb.kserve.merge.json_reader import read_in_steps
from lb.kserve.merge.steps import LongText, Pace, Steps

ReadT = TypeVar("ReadT")
MessageT = TypeVar("MessageT", bound=Message)

Json = dict[str, Any]

MAX_BYTES: Final = 16 * 2**20
"""Longest answer that is merged: the statistics of ten thousand models have 10 MiB."""
MAX_SHORT_BYTES: Final = 128 * 1024
"""Longest answer that describes a server or its settings; each has one or two KiB."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Disagreement(Exception):
    """The servers say what no single server could say."""


class Unreadable(Exception):
    """One of the answers cannot be merged, which was found after it had been read."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at
        """Its place among the answers."""


class Merge(Protocol[ReadT]):
    """Reads the answers of one operation in one protocol, and makes one of them."""

    max_bytes: int
    """Longest answer that is read."""

    def read(self, body: bytes) -> Steps[ReadT]:
        """Read one answer.

        Raises:
            ValueError: it is no such answer.
        """
        ...

    def combine(self, answers: Sequence[tuple[str, ReadT]]) -> Steps[bytes]:
        """Make one of at least one; each comes with the name of its backend.

        Raises:
            Disagreement: they contradict each other.
            Unreadable: one of them has to be left out.
        """
        ...


def read_object(body: bytes) -> Json:
    """A JSON object.

    Raises:
        ValueError: it is something else.
    """
    try:
        found = json.loads(body.decode("utf-8", "surrogateescape"))  # see `JsonReader`
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is no JSON that can be read") from error
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")
    return found


def read_objects(body: bytes) -> Steps[list[Json]]:
    """A JSON array of objects.

    Raises:
        ValueError: it is something else.
    """
    found = yield from read_in_steps(body)
    if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
        raise ValueError("the answer is no JSON array of objects")
    return found


def write_json(value: object) -> bytes:
    """JSON without spaces, names in the order in which they stand, as Triton writes it.

    What is no Unicode in the answers becomes U+FFFD. Strict clients refuse halves of surrogate
    pairs, as bytes and as escapes, and would lose what all other servers say.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def write_objects(values: Sequence[Json]) -> Steps[bytes]:
    """A JSON array, written in steps."""
    text = LongText()
    pace = Pace()
    for value in values:
        written = write_json(value)
        text.add(b"," if text else b"", written)
        if pace.count(len(written)):
            yield
    return text.finish(b"[", b"]")


def read_message(kind: type[MessageT], body: bytes) -> MessageT:
    """A protobuf message.

    Raises:
        ValueError: it is none.
    """
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise ValueError("the answer cannot be parsed") from error
