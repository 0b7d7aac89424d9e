"""The elements of outputs in a long JSON answer, cut out of it in steps.

`json.loads` reads a whole text at once, and keeps the interpreter meanwhile: a second for 16 MiB.
Nearly all of such an answer are the elements of its outputs. They stay as they were written, and
what is left of the JSON is short.

Triton writes the elements of an output as one flat list.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.kserve.merge.steps import STEP_BYTES, Steps
from lb.kserve.split.tensors import MAX_PARSED

_SPACE: Final = rb"[ \t\r\n]*+"
_NUMBER: Final = rb"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|Infinity)|NaN"
_STRING: Final = rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"'
_ELEMENT: Final = rb"(?:" + _NUMBER + rb"|true|false|null|" + _STRING + rb")"
# All repetitions are possessive: a hostile text costs time in proportion to its length.
_BEGIN: Final = re.compile(rb'"data"' + _SPACE + rb":" + _SPACE + rb"\[")
"""Quotes within a string are escaped, so this is a name and the beginning of its list."""
_SOME: Final = re.compile(rb"(?:" + _SPACE + _ELEMENT + _SPACE + rb",)*+")
_ONE: Final = re.compile(_SPACE + _ELEMENT + _SPACE + rb",")
_LAST: Final = re.compile(rb"(?P<element>" + _SPACE + _ELEMENT + rb")?+" + _SPACE + rb"\]")
_TEXTS: Final = re.compile(_STRING)


class Elements(NamedTuple):
    """The elements of one output."""

    size: int
    """How many they are."""
    text: memoryview
    """As they were written, without brackets."""


class Skeleton(NamedTuple):
    """A JSON text with a number in the place of each list of elements: its place in `elements`."""

    text: bytes
    elements: list[Elements]


def cut_elements(text: bytes) -> Steps[Skeleton]:
    """Cut the lists of elements out of an answer.

    Raises:
        ValueError: a list is not flat, has very long elements, or is no JSON.
    """
    view = memoryview(text)
    pieces: list[bytes] = []
    found: list[Elements] = []
    at = 0
    while begin := (yield from _next_list(text, at)):
        # Its name stays, and so does what stands before it.
        pieces.append(text[at : begin - 1] + b"%d" % len(found))
        elements, at = yield from _elements(text, view, begin)
        found.append(elements)
    return Skeleton(b"".join((*pieces, text[at:])), found)


def _next_list(text: bytes, at: int) -> Steps[int]:
    """Where the next list of elements begins, behind its bracket; 0 where there is none."""
    while at < len(text):
        # A name may stand across the end of a step.
        match = _BEGIN.search(text, at, at + 2 * STEP_BYTES)
        if match is not None:
            return match.end()
        at += STEP_BYTES
        yield
    return 0


def _elements(text: bytes, view: memoryview, begin: int) -> Steps[tuple[Elements, int]]:
    """The elements of a list that begins there, and where what follows the list begins.

    Raises:
        ValueError: it is not flat, has very long elements, or is no JSON.
    """
    at, count = begin, 0
    while True:
        some = _SOME.match(text, at, at + STEP_BYTES)
        end = at if some is None else some.end()
        if end == at:
            last = _LAST.match(text, at, at + MAX_PARSED)
            if last is not None:
                break
            longer = _ONE.match(text, at, at + MAX_PARSED)  # than a step
            if longer is None:
                raise ValueError("a list of elements is not flat, or has very long ones")
            end = longer.end()
        part = text[at:end]
        count += (_TEXTS.sub(b"", part) if b'"' in part else part).count(b",")
        at = end
        yield
    has_last = last["element"] is not None
    if count and not has_last:
        raise ValueError("a list of elements ends with a comma")
    return Elements(count + has_last, view[begin : last.end() - 1]), last.end()
