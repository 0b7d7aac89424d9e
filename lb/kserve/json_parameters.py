"""Find the `parameters` of a KServe request in JSON of any size without parsing the rest of it.

They stand behind the tensors, which may be megabytes of numbers. What lies before is skipped
with a few passes at the speed of C over each piece as it comes, so no piece blocks for long, and
nothing but the parameters themselves is kept. As in Triton's parser, the first of several counts.

What a key of this name within a tensor, within text or as a value looks like is no matter: only a
key of the outermost object is taken. A name that is spelled with escapes is not found.
"""

from __future__ import annotations

from enum import Enum
from json import JSONDecoder
from typing import Any, Final

KEY: Final = b'"parameters"'
MAX_SIZE: Final = 64 * 1024
"""Bytes of the parameters themselves; those of real requests have a few hundred."""
_MAX_CANDIDATES: Final = 4096
"""Places that look like the key: every tensor may have parameters of its own."""
_MAX_TRIALS: Final = 64
"""Times that incomplete parameters are parsed in vain, whatever pieces they come in."""
_SPACE: Final = b" \t\r\n"
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'"{}[]'))
_MANY_MARKS: Final = 64
"""Quotation marks in a piece, from which on it is not taken apart as it is."""

Parameters = dict[str, Any]


class _State(Enum):
    SEARCHING = 0
    """For the key."""
    AFTER_KEY = 1
    """A colon tells that it was one."""
    IN_VALUE = 2
    OVER = 3


class ParametersScan:
    """Takes a request's JSON in any pieces."""

    __slots__ = (
        "_candidates", "_carry", "_depth", "_has_begun", "_in_string", "_state", "_trials",
        "parameters",
    )  # fmt: skip

    def __init__(self) -> None:
        self._state = _State.SEARCHING
        self._carry = b""
        """Read, but not decided on: an incomplete key, or incomplete parameters."""
        self._depth = 0
        """Objects and arrays that are open."""
        self._has_begun = False
        self._in_string = False
        self._candidates = 0
        self._trials = 0
        self.parameters: Parameters = {}
        """What was found; empty until then, and where there are none that Triton could read."""

    def feed(self, piece: bytes) -> bool:
        """Take the next piece. True once more would change nothing."""
        rest: bytes | None = self._carry + piece
        self._carry = b""
        while rest is not None:
            rest = self._advance(rest, has_news=b"}" in piece)
        return self._state is _State.OVER

    def _advance(self, data: bytes, *, has_news: bool) -> bytes | None:
        """Go on in the present state. Returns what is left for the next, None without one."""
        if self._state is _State.SEARCHING:
            return self._search(data)
        if self._state is _State.AFTER_KEY:
            return self._pass_colon(data)
        if self._state is _State.IN_VALUE:
            self._read_value(data, has_news=has_news)
        return None

    def _search(self, data: bytes) -> bytes | None:
        """Look for the key. Returns what lies behind it, None when all was taken."""
        at = 0
        found = data.find(KEY)
        while found >= 0:
            if _ends_in_escape(data, at, found):
                # This quotation mark belongs to a text.
                self._skip(data[at : found + 1])
                at = found + 1
            else:
                self._skip(data[at:found])
                at = found
                if not self._in_string:
                    at += len(KEY)
                    if self._depth == 1:
                        self._state = _State.AFTER_KEY
                        return data[at:]
            self._candidates += 1
            if self._candidates > _MAX_CANDIDATES:
                self._state = _State.OVER
                return None
            found = data.find(KEY, max(at, found + 1))
        end = max(at, len(data) - len(KEY) + 1)
        if _ends_in_escape(data, at, end):
            end -= 1
        self._skip(data[at:end])
        self._carry = data[end:]
        if self._has_begun and self._depth <= 0 and not self._in_string:
            self._state = _State.OVER
        return None

    def _skip(self, text: bytes) -> None:
        """Count what opens and closes in `text`, which cuts no escape sequence."""
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        if text.count(b'"') > _MANY_MARKS:
            # Two marks with nothing between them change nothing, wherever they stand. Most texts
            # hold no bracket, so next to nothing is left to be taken apart.
            text = text.translate(None, _NO_STRUCTURE).replace(b'""', b"")
        parts = text.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        if len(parts) % 2 == 0:
            self._in_string = not self._in_string
        opened = outside.count(b"{") + outside.count(b"[")
        self._depth += opened - outside.count(b"}") - outside.count(b"]")
        if opened:
            self._has_begun = True

    def _pass_colon(self, data: bytes) -> bytes | None:
        data = data.lstrip(_SPACE)
        if not data:
            return None
        if data[0] != ord(":"):
            self._state = _State.SEARCHING  # it was a value
            return data
        self._state = _State.IN_VALUE
        return data[1:]

    def _read_value(self, data: bytes, *, has_news: bool) -> None:
        data = data.lstrip(_SPACE)
        self._carry = data
        if not data:
            return
        if data[0] != ord("{"):
            self._state = _State.OVER
        elif has_news:
            found = decode_object(data[:MAX_SIZE])
            self._trials += 1
            if found is not None:
                self.parameters = found
                self._state = _State.OVER
        if len(data) > MAX_SIZE or self._trials > _MAX_TRIALS:
            self._state = _State.OVER
        if self._state is _State.OVER:
            self._carry = b""


def _ends_in_escape(data: bytes, start: int, end: int) -> bool:
    """Whether the backslash before `end` has yet to meet what it escapes."""
    if end <= start or data[end - 1] != ord("\\"):
        return False
    part = data[start:end]
    return (len(part) - len(part.rstrip(b"\\"))) % 2 == 1


def _first_of_each(pairs: list[tuple[str, Any]]) -> Parameters:
    return dict(reversed(pairs))


_DECODER: Final = JSONDecoder(object_pairs_hook=_first_of_each)


def decode_object(data: bytes) -> Parameters | None:
    """The JSON object that `data` begins with, whatever follows; None when there is none.

    Of members with the same name the first counts. Text that is not UTF-8 stays as it is, in
    surrogate escapes: Triton takes it, too.
    """
    try:
        found, _ = _DECODER.raw_decode(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
