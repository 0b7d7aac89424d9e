"""Reads a long JSON text in steps, with the C decoder of the standard library.

The text is decoded in windows. A value that lies within a window is read at once; a container that
does not is opened, and its members are read one after the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from lb.kserve.merge.steps import STEP_BYTES, Pace, Steps

MAX_PARTS: Final = 2**19
"""Brackets, braces and commas of what is kept of one text. Each stands for up to 100 bytes of
memory, so this is 50 MB; a list of 10,000 models has 50,000."""
_DEPTH: Final = 8
"""Levels of containers that are longer than a window: an outer one is tried in vain first."""
_VALUE_WORK: Final = 32
"""What a value costs beside its length, in bytes that a step may read."""
_STRING: Final = 2**20
"""Characters up to which a window grows for a single string, which is read in a millisecond."""
_LONGEST_CHARACTER: Final = 4
"""Bytes of a character in UTF-8."""
_FAULT: Final = "the answer is no JSON that can be read"
_TOO_LONG: Final = "the answer is too long to be merged"
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_CLOSING: Final = {"[": "]", "{": "}"}
_scan: Final = json.JSONDecoder().raw_decode


class JsonReader:
    """Walks over one text. All methods raise ValueError where it is no JSON."""

    def __init__(self, body: bytes, begin: int = 0, end: int | None = None) -> None:
        """Begin at a value.

        Args:
            body: UTF-8.
            begin: where the value begins.
            end: where the text ends; None is the end of the body.
        """
        self.room = MAX_PARTS
        """Parts that may still be kept."""
        self._body = body
        self._end = len(body) if end is None else end
        self._pace = Pace()
        self._fill(begin)

    def _fill(self, begin: int, size: int = STEP_BYTES) -> None:
        """Decode the window that begins at a byte."""
        stop = min(begin + size, self._end)
        if stop < self._end:
            stop -= _split_bytes(self._body, stop)
        # Names of files and what clients have set need not be UTF-8, and servers pass them on.
        self._text = self._body[begin:stop].decode("utf-8", "surrogateescape")
        self._base = begin
        self._stop = stop
        self._at = self._began = 0

    @property
    def position(self) -> int:
        """The byte at which the reader is."""
        text = self._text
        if text.isascii():
            return self._base + self._at
        return self._base + len(text[: self._at].encode("utf-8", "surrogateescape"))

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._stop == self._end:
                return ""
            self._fill(self._stop)

    def _take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise ValueError(_FAULT)
        self._at += 1

    def finish(self) -> None:
        """See that nothing follows."""
        if self.peek():
            raise ValueError(_FAULT)

    def within_window(self) -> tuple[bool, Any]:
        """Read the next value if a window holds it. Returns whether it did, and the value."""
        self.peek()
        while True:
            text, at = self._text, self._at
            try:
                value, end = _scan(text, at)
            except json.JSONDecodeError:
                end = len(text)
                is_read = False
            except RecursionError as error:
                raise ValueError(_FAULT) from error
            else:
                # A number may go on beyond the window.
                is_read = end < len(text) or self._stop == self._end
            if is_read:
                self._at = end
                self._began = at
                return True, value
            if at:
                self._fill(self.position)
            elif text[:1] == '"' and self._stop < self._end and len(text) < _STRING:
                self._fill(self._base, 2 * (self._stop - self._base))
            else:
                return False, None

    def members(self, opening: str) -> Iterator[str]:
        """Walk over a container. The caller reads one value for each that this yields: the name of
        a member, or an empty one for an element of an array."""
        closing = _CLOSING[opening]
        self._take(opening)
        if self.peek() == closing:
            self._at += 1
            return
        while True:
            name = ""
            if opening == "{":
                if self.peek() != '"':
                    raise ValueError(_FAULT)
                is_read, name = self.within_window()
                if not is_read:
                    raise ValueError(_FAULT)
                self._take(":")
            yield name
            if self.peek() == closing:
                self._at += 1
                return
            self._take(",")

    def value(self, depth: int = 0) -> Steps[Any]:
        """Read the next value, whatever its length."""
        is_read, found = self.within_window()
        if is_read:
            text, begin, end = self._text, self._began, self._at
            self._keep(1 + sum(text.count(part, begin, end) for part in ",[{"))
            if self._pace.count(end - begin + _VALUE_WORK):
                yield
            return found
        yield  # a window was read in vain
        opening = self.peek()
        if opening not in _CLOSING or depth >= _DEPTH:
            raise ValueError(_FAULT)
        self._keep(1)
        if opening == "[":
            items: list[Any] = []
            for _ in self.members("["):
                item = yield from self.value(depth + 1)
                items.append(item)
            return items
        values = {}
        for name in self.members("{"):
            values[name] = yield from self.value(depth + 1)
        return values

    def _keep(self, parts: int) -> None:
        self.room -= parts
        if self.room < 0:
            raise ValueError(_TOO_LONG)


def _split_bytes(body: bytes, stop: int) -> int:
    """Count the bytes before a place that belong to a character which goes on behind it."""
    for count in range(_LONGEST_CHARACTER):
        if body[stop - count] & 0xC0 != 0x80:
            return count
    return 0  # no character


def read_in_steps(body: bytes) -> Steps[Any]:
    """Read a whole text."""
    reader = JsonReader(body)
    value = yield from reader.value()
    reader.finish()
    return value
