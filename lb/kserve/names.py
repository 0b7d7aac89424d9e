"""Names of models, replaced in requests for a Triton and in its answers to clients.

Nothing is decoded but the fields that hold names. A message may be there in part: what it is
replaced in is then its first part, and the rest follows as it came.

Sources: `grpc_service.proto` (`ModelInferRequest`, `ModelInferResponse` and `ModelMetadata*` have
the name in field 1, requests the version in field 2; `ModelStreamInferResponse` and
`ModelConfigResponse` hold a message with the name). Writers put fields in the order of their
numbers; of repeated ones the last counts, so all that were found are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from lb.wire.protobuf import BYTES, FieldBudget, ProtobufError, fields, write_bytes, write_varint

_NAME: Final = 1
_VERSION: Final = 2
_FIELDS: Final = 64
"""Fields of a message that are looked at; names are the first of them."""
NAME_BYTES: Final = 4096
"""Bytes of an answer within which a name must stand to be replaced."""
JSON_BYTES: Final = 64 * 1024
"""Bytes of an answer in JSON within which a name must stand to be replaced."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)
_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def _spans(part: bytes, size: int, numbers: frozenset[int]) -> list[tuple[int, int, int, int]]:
    """Where fields stand in the first part of a message of `size` bytes: number, start of the tag,
    start and end of the value. Those that go on behind the part are among them."""
    found = []
    at = 0
    try:
        for number, kind, begin, end in fields(part, 0, size, FieldBudget(_FIELDS)):
            if kind == BYTES and number in numbers:
                found.append((number, at, begin, end))
            at = end
            if end >= len(part):
                break
    except (ProtobufError, IndexError):
        pass  # what follows is not looked at, nor changed
    return found


_REQUEST: Final = frozenset({_NAME, _VERSION})
_ANSWER: Final = frozenset({_NAME})


def renamed_request(part: bytes, size: int, model: bytes, version: bytes) -> bytes:
    """The first part of a request of `size` bytes, for another model.

    Args:
        part: without prefix.
        size: of the whole message.
        model: the name to put there.
        version: likewise; empty leaves it to the Triton.
    """
    head = write_bytes(_NAME, model) + (write_bytes(_VERSION, version) if version else b"")
    return head + _without(part, _spans(part, size, _REQUEST))


def renamed_answer(part: bytes, size: int, name: Callable[[bytes], bytes]) -> bytes:
    """The first part of an answer of `size` bytes, with another name of its model.

    Args:
        part: without prefix.
        size: of the whole message.
        name: returns the name to put in the place of one.
    """
    spans = [each for each in _spans(part, size, _ANSWER) if each[3] <= len(part)]
    if not spans:
        return part
    _, _, begin, end = spans[-1]
    old = part[begin:end]
    new = name(old)
    return part if new == old else write_bytes(_NAME, new) + _without(part, spans)


def renamed_inside(part: bytes, size: int, number: int, name: Callable[[bytes], bytes]) -> bytes:
    """As `renamed_answer` where the name stands in a message within, which is field `number`."""
    spans = _spans(part, size, frozenset({number}))
    if not spans:
        return part
    _, tag, begin, end = spans[-1]
    inner = part[begin:end]
    renamed = renamed_answer(inner, end - begin, name)
    if renamed is inner:
        return part
    length = write_varint(end - begin + len(renamed) - len(inner))
    return part[:tag] + bytes((number << 3 | BYTES,)) + length + renamed + part[end:]


def _without(part: bytes, spans: list[tuple[int, int, int, int]]) -> bytes:
    out, at = b"", 0
    for _, tag, _, end in spans:
        if end <= len(part):
            out += part[at:tag]
            at = end
    return out + part[at:]


def renamed_json(
    text: bytes,
    key: bytes,
    depth: int,
    name: Callable[[bytes], bytes],
    *,
    all_of_them: bool = False,
) -> bytes | None:
    """JSON, or the first part of it, with another name of its model.

    Args:
        text: as it came.
        key: of the name.
        depth: how many objects and lists are around it.
        name: returns the name to put in the place of one.
        all_of_them: the text is complete, and every such name counts; otherwise the first one does.

    Returns:
        None where the name is not there yet.
    """
    quoted = b'"%b"' % key
    out, at, deep, is_key = b"", 0, 0, False
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in (b"{", b"["):
            deep += 1
        elif word in (b"}", b"]"):
            deep -= 1
            if not deep:
                break
        elif is_key and deep == depth:
            old = _plain(word)
            new = name(old)
            if new != old:
                out += text[at : token.start()] + _json_text(new)
                at = token.end()
            if not all_of_them:
                return out + text[at:]
        is_key = deep == depth and word == quoted and _COLON.match(text, token.end()) is not None
    return out + text[at:] if all_of_them or (not deep and at) else None


def _plain(word: bytes) -> bytes:
    try:
        return str(json.loads(word)).encode()
    except ValueError:
        return word[1:-1]


def _json_text(name: bytes) -> bytes:
    return json.dumps(name.decode("utf-8", "replace"), ensure_ascii=False).encode()
