"""A chunked body decoded byte by byte, one state after the other (RFC 9112 7.1)."""

from __future__ import annotations

_HEX = b"0123456789abcdefABCDEF"
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Illegal(Exception):
    """Not a chunked body."""


def decode(wire: bytes) -> tuple[bytes, bytes, int] | None:
    """Payload, trailer lines, and where the body ends; None when there is more to come.

    Raises:
        Illegal: as soon as no continuation could be legal.
    """
    payload = b""
    at = 0
    while True:
        found = _size_line(wire, at)
        if found is None:
            return None
        size, at = found
        if size == 0:
            trailers = _trailers(wire, at)
            return None if trailers is None else (payload, *trailers)
        payload += wire[at : at + size]
        at += size
        for byte in b"\r\n":
            if at >= len(wire):
                return None
            if wire[at] != byte:
                raise Illegal("data")
            at += 1


def _size_line(wire: bytes, at: int) -> tuple[int, int] | None:
    digits = b""
    while at < len(wire) and wire[at] in _HEX:
        digits += wire[at : at + 1]
        at += 1
        if len(digits) > 16:
            raise Illegal("size")
    if at >= len(wire):
        return None
    if not digits:
        raise Illegal("size")
    start = at
    if wire[at] in b" \t;":
        while at < len(wire) and (wire[at] == 9 or (wire[at] >= 32 and wire[at] != 127)):
            at += 1
            if at - start > 256:
                raise Illegal("extension")
    extension = wire[start:at]
    for byte in b"\r\n":
        if at >= len(wire):
            return None
        if wire[at] != byte:
            raise Illegal("size")
        at += 1
    _check_extension(extension)
    return int(digits, 16), at


def _check_extension(text: bytes) -> None:
    """*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] ), each BWS short."""
    at = 0
    while at < len(text):
        at = _past_blank(text, at)
        if text[at : at + 1] != b";":
            raise Illegal("extension")
        at = _past_token(text, _past_blank(text, at + 1))
        equals = _past_blank(text, at)
        if text[equals : equals + 1] == b"=":
            at = _past_blank(text, equals + 1)
            at = _past_quoted(text, at) if text[at : at + 1] == b'"' else _past_token(text, at)


def _past_blank(text: bytes, at: int) -> int:
    end = at
    while text[end : end + 1] in (b" ", b"\t"):
        end += 1
    if end - at > 16:
        raise Illegal("blank")
    return end


def _past_token(text: bytes, at: int) -> int:
    end = at
    while end < len(text) and text[end] in _TOKEN:
        end += 1
    if end == at:
        raise Illegal("token")
    return end


def _past_quoted(text: bytes, at: int) -> int:
    at += 1
    while text[at : at + 1] != b'"':
        at += 2 if text[at : at + 1] == b"\\" else 1
        if at >= len(text):
            raise Illegal("quoted string")
    return at + 1


def _trailers(wire: bytes, at: int) -> tuple[bytes, int] | None:
    start = at
    count = 0
    malformed = False
    while True:
        line = b""
        while True:
            if at >= len(wire):
                if at - start > 16384:
                    raise Illegal("trailers")
                return None
            byte = wire[at]
            at += 1
            if byte == 13:
                if at >= len(wire):
                    return None
                if wire[at] != 10:
                    raise Illegal("trailers")
                at += 1
                break
            if byte != 9 and (byte < 32 or byte == 127):
                raise Illegal("trailers")
            line += bytes((byte,))
        if not line:
            break
        name, colon, _ = line.partition(b":")
        if not colon or not name or any(byte not in _TOKEN for byte in name):
            malformed = True
        count += 1
    # Said once all trailers are there; before that only characters are looked at.
    if malformed or count > 100:
        raise Illegal("trailers")
    return wire[start : at - 2], at
