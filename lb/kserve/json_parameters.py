"""Find the `parameters` of a KServe request in JSON of any size without parsing the rest of it.

They stand behind the tensors, which may be megabytes of numbers. Whatever lies before them is
passed over at the speed of C, piece by piece. The cost of a body grows with its size alone: each
byte is looked at a fixed number of times, and keys are counted before they are looked at. Nothing
but the parameters themselves is kept. As in Triton's parser, the first of several counts.

Only a key of the outermost object is taken: not one within a tensor, within text, or that is a
value. A name that is spelled with escapes is not found.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import islice
from json import JSONDecoder
from typing import Any, Final

KEY: Final = b'"parameters"'
MAX_SIZE: Final = 64 * 1024
"""Bytes of the parameters themselves; those of real requests have a few hundred."""
MAX_KEYS: Final = 4096
"""Keys of this name in one request, of which every tensor may have one. The search ends there."""
MAX_TOKENS: Final = 1024
"""Strings, objects and arrays within the parameters; those of real requests have dozens."""

_KEY: Final = re.compile(KEY + rb"[ \t\r\n]*+(?:(:)|\Z)")
"""The key, with its colon unless the data ends before it."""
_MARK: Final = b"\x01"
"""Stands for the key in a piece that is searched. JSON does not have this character."""
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_NESTING: Final = bytes.maketrans(b"[]", b"{}")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'"{}[]\x01'))
_MANY_QUOTES: Final = 64
"""Quotation marks in a piece from which on all but its structure is dropped before it is split."""
_TOKEN: Final = re.compile(rb'["{}\[\]]')
_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The rest of a string, without its last quotation mark."""

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
        "_carry", "_depth", "_has_begun", "_in_string", "_keys", "_state", "_value", "parameters",
    )  # fmt: skip

    def __init__(self) -> None:
        self._state = _State.SEARCHING
        self._carry = b""
        """The end of the last piece: part of a key, or of an escape sequence."""
        self._depth = 0
        """Objects and arrays that are open."""
        self._has_begun = False
        self._in_string = False
        self._keys = 0
        self._value: _Value | None = None
        """The parameters, once their object has begun."""
        self.parameters: Parameters = {}
        """What was found; empty until then, and where there are none that Triton could read."""

    def feed(self, piece: bytes) -> bool:
        """Take the next piece. True once more would change nothing."""
        at = 0
        if self._state is _State.AFTER_KEY:
            at = self._pass_colon(piece)
        if self._state is _State.SEARCHING:
            piece = self._carry + piece[at:]
            at = self._search(piece)
        if self._state is _State.IN_VALUE:
            self._read_value(piece, at)
        return self._state is _State.OVER

    def _search(self, data: bytes) -> int:
        """Look for the key. Returns where its value begins, or the end of the data."""
        # As long as the data, and without quotation marks that belong to a text.
        text = data.replace(b"\\\\", b"--").replace(b'\\"', b"--") if b"\\" in data else data
        end = _end_of_whole(data, text)
        self._carry = data[end:]
        keys = 0
        marked = text
        if KEY in text:
            marked, keys = _KEY.subn(_MARK, text, MAX_KEYS + 1 - self._keys)
            self._keys += keys
        marked = marked[: len(marked) - len(self._carry)]
        found = self._follow(marked) if keys else self._skip(marked)
        if found:
            match = next(islice(_KEY.finditer(text), found - 1, None))
            self._carry = b""
            self._state = _State.IN_VALUE if match[1] else _State.AFTER_KEY
            return match.end()
        is_over = self._has_begun and self._depth <= 0 and not self._in_string
        if is_over or self._keys > MAX_KEYS:
            self._state = _State.OVER
        return len(data)

    def _skip(self, text: bytes) -> int:
        """Count what opens and closes in text without a key. Always 0."""
        outside = self._outside(text)
        opened = outside.count(b"{") + outside.count(b"[")
        self._depth += opened - outside.count(b"}") - outside.count(b"]")
        self._has_begun |= opened > 0
        return 0

    def _follow(self, text: bytes) -> int:
        """Count what opens and closes up to a key of the outermost object.

        Args:
            text: with marks in the place of keys.

        Returns:
            Its number among the keys in the text, from 1 on; 0 where there is none.
        """
        depth = self._depth
        structure = self._outside(text).translate(_NESTING, _NO_STRUCTURE)
        for number, part in enumerate(structure.split(_MARK)):
            if number and depth == 1:
                return number
            depth += part.count(b"{") - part.count(b"}")
        self._depth = depth
        self._has_begun |= b"{" in structure
        return 0

    def _outside(self, text: bytes) -> bytes:
        """The text without its strings."""
        if text.count(b'"') > _MANY_QUOTES:
            # Two marks with nothing between them change nothing, wherever they stand. Most texts
            # hold no bracket, so next to nothing is left to be taken apart.
            text = text.translate(None, _NO_STRUCTURE).replace(b'""', b"")
        parts = text.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        if len(parts) % 2 == 0:
            self._in_string = not self._in_string
        return outside

    def _pass_colon(self, data: bytes) -> int:
        """Look for the colon after the key. Returns where the value begins, or the rest."""
        at = _end_of_space(data, 0)
        if at == len(data):
            return at
        if data[at] != ord(":"):
            self._depth, self._has_begun = 1, True
            self._state = _State.SEARCHING  # it was a value
            return at
        self._state = _State.IN_VALUE
        return at + 1

    def _read_value(self, data: bytes, at: int) -> None:
        value = self._value
        if value is None:
            at = _end_of_space(data, at)
            if at == len(data):
                return
            if data[at] != ord("{"):
                self._state = _State.OVER
                return
            value = self._value = _Value()
        whole = value.feed(data, at)
        if whole is not None:
            self.parameters = decode_object(whole) or {}
        if whole is not None or value.is_too_much:
            self._value = None
            self._state = _State.OVER


class _Value:
    """An object of which not all has come. Each byte is looked at once."""

    __slots__ = ("_at", "_depth", "_in_string", "_text", "_tokens")

    def __init__(self) -> None:
        self._text = bytearray()
        self._at = 0
        """How far it was looked at."""
        self._depth = 0
        self._in_string = False
        self._tokens = 0

    @property
    def is_too_much(self) -> bool:
        """Whether it is larger than parameters may be."""
        return len(self._text) > MAX_SIZE or self._tokens > MAX_TOKENS

    def feed(self, data: bytes, start: int) -> bytes | None:
        """Take what of the object is in the data. The whole of it, once that is there."""
        text = self._text
        text += data[start : start + MAX_SIZE + 1 - len(text)]
        at, size = self._at, len(text)
        while at < size and self._tokens <= MAX_TOKENS:
            if self._in_string:
                string = _STRING.match(text, at)
                at = size if string is None else string.end()
                if at == size or text[at] != ord('"'):
                    break
                self._in_string = False
                at += 1
                continue
            token = _TOKEN.search(text, at)
            if token is None:
                at = size
                break
            at = token.end()
            self._tokens += 1
            if token[0] == b'"':
                self._in_string = True
            else:
                self._depth += 1 if token[0] in b"{[" else -1
                if not self._depth:
                    return bytes(text[:at])
        self._at = at
        return None


def _end_of_whole(data: bytes, text: bytes) -> int:
    """How much of the data can be searched: neither a key nor an escape sequence is cut there.

    Args:
        data: as it came.
        text: the same without escape sequences.
    """
    last = 0
    key = text.rfind(KEY)
    if key >= 0:
        match = _KEY.match(text, key)
        last = key + len(KEY) if match is None else match.end()
    end = max(last, len(data) - len(KEY) + 1)
    if end and data[end - 1] == ord("\\"):
        before = data[:end]
        end -= (len(before) - len(before.rstrip(b"\\"))) % 2
    return end


def _end_of_space(data: bytes, at: int) -> int:
    match = _SPACE.match(data, at)
    return at if match is None else match.end()


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
