"""The elements of tensors in JSON, cut out of it in steps.

`json.loads` reads a whole text at once, and keeps the interpreter meanwhile: a second for 16 MiB.
Nearly all of a long request or answer are the elements of its tensors. They stay as they were
written, and what is left of the JSON is short.

Triton writes the elements of an output as one flat list. Those of an input may be nested.
"""

from __future__ import annotations

import re
from array import array
from itertools import accumulate, count
from operator import add, methodcaller
from typing import Final, NamedTuple

from lb.kserve.merge.steps import STEP_BYTES, Pace, Steps
from lb.kserve.split.tensors import MAX_PARSED

_SPACE: Final = rb"[ \t\r\n]*+"
_NUMBER: Final = rb"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|Infinity)|NaN"
_STRING: Final = rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"'
_ELEMENT: Final = rb"(?:" + _NUMBER + rb"|true|false|null|" + _STRING + rb")"
# All repetitions are possessive: a hostile text costs time in proportion to its length.
_BEGIN: Final = re.compile(rb'"data"' + _SPACE + rb":" + _SPACE + rb"\[")
"""Quotes within a string are escaped, so this is a name and the beginning of its list."""
_SOME: Final = re.compile(rb"(?:" + _SPACE + _ELEMENT + _SPACE + rb",)*+")
_OPENINGS: Final = re.compile(rb"(?:" + _SPACE + rb"\[)*+")
_MAX_NESTED: Final = 4
"""Lists in lists that are taken at once: images have three dimensions beside that of the batch."""


def _nested(depth: int) -> bytes:
    """The pattern of a list whose elements stand `depth` lists deep. Other lists end as JSON is
    usually written: without spaces."""
    inner = _ELEMENT + _SPACE if depth == 1 else _nested(depth - 1)
    return rb"\[" + _SPACE + inner + rb"(?:," + _SPACE + inner + rb")*+\]"


_LISTS: Final = [re.compile(_nested(depth + 1) + rb",") for depth in range(_MAX_NESTED)]
_SOME_LISTS: Final = [re.compile(rb"(?:" + _SPACE + each.pattern + rb")*+") for each in _LISTS]
_NEXT: Final = re.compile(
    _SPACE + rb"(?:(?P<element>" + _ELEMENT + rb")" + _SPACE + rb")?+(?P<mark>[\[\],])"
)
_AFTER_LIST: Final = re.compile(_SPACE + rb"(?P<mark>[\],])")
_COMMA: Final = re.compile(rb"(?:" + _STRING + rb"|[^\",])*+,")
"""An element and its comma, in a text of which is known that it is some elements."""
_TEXTS: Final = re.compile(_STRING)


_count_commas: Final = methodcaller("count", b",")

_ITEM_COST: Final = 4
"""What a step does with a byte costs so many times as much where the places of items are noted."""
_LIST_COST: Final = 32
"""So much does one more list cost, in bytes of plain elements."""


class Elements(NamedTuple):
    """The elements of one tensor."""

    size: int
    """How many they are, those of inner lists one by one."""
    text: memoryview
    """As they were written, without brackets."""
    ends: array[int]
    """Where each item of the list ends, which is an element or a list, comma or bracket included.
    Nothing unless asked for."""
    each: int
    """Elements of each item; 0 where there are none, or items differ."""

    def items(self, first: int, count: int) -> memoryview:
        """The text of `count` items from `first` on, with commas between them."""
        if not count:
            return self.text[:0]
        begin = self.ends[first - 1] if first else 0
        return self.text[begin : self.ends[first + count - 1] - 1]


class Skeleton(NamedTuple):
    """A JSON text with a number in the place of each list of elements: its place in `elements`."""

    text: bytes
    elements: list[Elements]


def cut_elements(text: bytes, *, by_item: bool = False, most: int = MAX_PARSED) -> Steps[Skeleton]:
    """Cut the lists of elements out of a request or an answer.

    Args:
        text: all of it.
        by_item: note where items end.
        most: bytes of what is left.

    Raises:
        ValueError: more is left. Or a list has very long elements, an empty list in it, or is no
            JSON.
    """
    pieces: list[bytes] = []
    found: list[Elements] = []
    pace = Pace()
    at, left = 0, most
    while begin := (yield from _next_list(text, at, pace)):
        left -= begin - at
        if left < 0:
            break
        # Its name stays, and so does what stands before it.
        pieces.append(text[at : begin - 1] + b"%d" % len(found))
        walk = _Walk(text, begin, by_item=by_item)
        while not walk.is_over:
            if pace.count(walk.go_on()):
                yield
        found.append(walk.elements)
        at = walk.at
    if len(text) - at > left:
        raise ValueError("very much of it are no elements")
    return Skeleton(b"".join((*pieces, text[at:])), found)


def _run(pattern: re.Pattern[bytes], text: bytes, at: int, room: int) -> bytes:
    """What a pattern finds at a place, in so many bytes."""
    match = pattern.match(text, at, at + room)
    return b"" if match is None else match[0]


def _commas(part: bytes) -> int:
    """Commas between elements, whose texts may have some of their own."""
    return (_TEXTS.sub(b"", part) if b'"' in part else part).count(b",")


def _next_list(text: bytes, at: int, pace: Pace) -> Steps[int]:
    """Where the next list of elements begins, behind its bracket; 0 where there is none."""
    while at < len(text):
        # A name may stand across the end of a step.
        match = _BEGIN.search(text, at, at + 2 * STEP_BYTES)
        end = min(at + STEP_BYTES, len(text)) if match is None else match.end()
        if pace.count(end - at):
            yield
        if match is not None:
            return end
        at = end
    return 0


class _Walk:
    """Walks over one list of elements."""

    __slots__ = (
        "_are_alike", "_before", "_begin", "_by_item", "_depth", "_each", "_ends", "_is_begun",
        "_size", "_text", "at", "is_over",
    )  # fmt: skip

    def __init__(self, text: bytes, begin: int, *, by_item: bool) -> None:
        """
        Args:
            text: what the list stands in.
            begin: where it begins, behind its bracket.
            by_item: note where items end.
        """
        self._text = text
        self._begin = self.at = begin
        self._by_item = by_item
        self._depth = 1
        """Lists that are open."""
        self._is_begun = True
        """Nothing stands in the innermost list yet."""
        self._are_alike = True
        """Inner lists may be taken many at once."""
        self._size = 0
        self._before = 0
        """Elements before the item that has not ended."""
        self._each = -1
        """Elements of each item so far; 0: they differ. -1: there are none."""
        self._ends = array("I")
        self.is_over = False

    @property
    def elements(self) -> Elements:
        """All of them, once it is over."""
        text = memoryview(self._text)[self._begin : self.at - 1]
        return Elements(self._size, text, self._ends, max(self._each, 0))

    def go_on(self) -> int:
        """Walk over some more. Returns what that costs, in bytes of plain elements.

        Raises:
            ValueError: see `cut_elements`.
        """
        text, begin = self._text, self.at
        room = STEP_BYTES // _ITEM_COST if self._by_item else STEP_BYTES
        if some := _run(_SOME, text, begin, room):
            self.at += len(some)
            self._take(some)
        elif self._are_alike and (lists := self._take_lists(room)):
            self.at += len(lists)
        else:
            self._take_next()
        size = self.at - begin
        return (size * _ITEM_COST if self._by_item else size) + _LIST_COST

    def _take(self, part: bytes) -> None:
        """Take some elements, each with its comma."""
        self._is_begun = False
        if self._depth > 1 or not self._by_item:
            self._size += _commas(part)
            return
        offset = self.at - len(part) - self._begin
        ends = self._ends
        before = len(ends)
        if b'"' in part:
            ends.extend([offset + match.end() for match in _COMMA.finditer(part)])
        else:
            sizes = map(len, part.split(b",")[:-1])
            ends.extend(map(add, accumulate(sizes), count(offset + 1)))
        self._size += len(ends) - before
        self._before = self._size
        self._note(1)

    def _take_lists(self, room: int) -> bytes:
        """Take lists, each with its comma, in so many bytes. Returns their text, and nothing where
        they are not written as usual, which is then not looked for again."""
        text, begin = self._text, self.at
        depth = _run(_OPENINGS, text, begin, room).count(b"[")
        end = b"]" * depth
        if not 0 < depth <= _MAX_NESTED or text.find(end, begin, begin + room) < 0:
            return b""
        part = _run(_SOME_LISTS[depth - 1], text, begin, room)
        if not part:
            self._are_alike = False
            return b""
        self._is_begun = False
        # A list has one comma less than elements, however deep they stand, and one behind it.
        if self._depth > 1 or not self._by_item:
            self._size += _commas(part)
            return part
        offset = begin - self._begin
        if b'"' in part:
            for match in _LISTS[depth - 1].finditer(part):
                size = _commas(match[0])
                self._ends.append(offset + match.end())
                self._size += size
                self._note(size)
        else:
            self._size += part.count(b",")
            lists = part.split(end)[:-1]  # each but the first begins with the comma of another
            steps = accumulate(map(len, lists))
            self._ends.extend(map(add, steps, count(offset + depth + 1, depth)))
            for size in {lists[0].count(b",") + 1, *map(_count_commas, lists[1:])}:
                self._note(size)
        self._before = self._size
        return part

    def _take_next(self) -> None:
        """Take what comes next: an element, or the beginning of a list, or the end of one."""
        match = _NEXT.match(self._text, self.at, self.at + MAX_PARSED)
        if match is None:
            raise ValueError("a list has very long elements, or is no JSON")
        self.at = match.end()
        has_element, mark = match["element"] is not None, match["mark"]
        self._size += has_element
        if mark == b"[":
            if has_element:
                raise ValueError("a list begins where a comma is to stand")
            self._depth += 1
            self._is_begun = True
            return
        if not has_element and not (mark == b"]" and self._is_begun and self._depth == 1):
            raise ValueError("an element is missing")
        self._is_begun = False
        if self._depth == 1 and has_element:
            self._end_item()
        while mark == b"]":
            self._depth -= 1
            if not self._depth:
                self.is_over = True
                return
            after = _AFTER_LIST.match(self._text, self.at, self.at + STEP_BYTES)
            if after is None:
                raise ValueError("a comma or a bracket is missing")
            self.at, mark = after.end(), after["mark"]
            if self._depth == 1:
                self._end_item()

    def _end_item(self) -> None:
        """An item has ended, behind whose mark the walk is."""
        if self._by_item:
            self._ends.append(self.at - self._begin)
        self._note(self._size - self._before)
        self._before = self._size

    def _note(self, size: int) -> None:
        """Note the elements of an item."""
        if self._each != size:
            self._each = size if self._each < 0 else 0
