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
    spaces = 0
    while at < len(wire) and wire[at] in b" \t":
        spaces += 1
        at += 1
        if spaces > 16:
            raise Illegal("extension")
    if at >= len(wire):
        return None
    if wire[at] == ord(";"):
        at += 1
        size = 0
        while at < len(wire) and (wire[at] == 9 or (wire[at] >= 32 and wire[at] != 127)):
            size += 1
            at += 1
            if size > 256:
                raise Illegal("extension")
    elif spaces:
        raise Illegal("extension")
    for byte in b"\r\n":
        if at >= len(wire):
            return None
        if wire[at] != byte:
            raise Illegal("size")
        at += 1
    return int(digits, 16), at


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
