"""The two things that we must know of our own certificates: their host names and their end.

RFC 5280 4.1, read from DER. The TLS library has accepted the certificate before, so this is no
validation; what is not understood is an error all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SEQUENCE: Final = 0x30
_EXTENSIONS: Final = 0xA3
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_OCTETS: Final = 0x04
_OID: Final = 0x06
_DNS_NAME: Final = 0x82
_SUBJECT_ALT_NAME: Final = b"\x55\x1d\x11"
"""2.5.29.17"""
_DAYS_BEFORE_MONTH: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_TO_1970: Final = 719_162
"""From the first day of year 1."""


class CertificateError(ValueError):
    """The bytes are no certificate as we know them."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself."""

    names: tuple[str, ...]
    """DNS names in lower case, wildcards (`*.example.org`) among them."""
    not_after: int
    """Unix time of its end."""


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate in DER.

    Raises:
        CertificateError: it cannot be understood.
    """
    try:
        return _read(der)
    except (IndexError, ValueError, StopIteration) as error:
        raise CertificateError("not an X.509 certificate") from error


def _read(der: bytes) -> Certificate:
    signed = _open(_only(der), _SEQUENCE)
    fields = list(_items(_open(next(_items(signed)), _SEQUENCE)))
    if fields[0][0] == _VERSION:
        del fields[0]
    # serial number, algorithm, issuer, validity, subject, key, and optional parts
    _, not_after = _items(_open(fields[3], _SEQUENCE))
    names: list[str] = []
    for tag, content in fields[6:]:
        if tag == _EXTENSIONS:
            for extension in _items(_open(_only(content), _SEQUENCE)):
                names += _names(_open(extension, _SEQUENCE))
    return Certificate(tuple(dict.fromkeys(names)), _unix_time(not_after))


def _names(extension: bytes) -> list[str]:
    """The DNS names of an extension; none when it is another one."""
    parts = list(_items(extension))
    if _open(parts[0], _OID) != _SUBJECT_ALT_NAME:
        return []
    names = _open(_only(_open(parts[-1], _OCTETS)), _SEQUENCE)
    return [text.decode("ascii").lower() for tag, text in _items(names) if tag == _DNS_NAME]


_Item = tuple[int, bytes]
"""Tag and content."""


def _items(data: bytes) -> Iterator[_Item]:
    """What a constructed value is made of."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        content = data[at : at + size]
        if len(content) != size:
            raise ValueError("truncated")
        yield tag, content
        at += size


def _only(data: bytes) -> _Item:
    (item,) = _items(data)
    return item


def _open(item: _Item, tag: int) -> bytes:
    if item[0] != tag:
        raise ValueError("unexpected tag")
    return item[1]


def _unix_time(item: _Item) -> int:
    """RFC 5280 4.1.2.5: always UTC and with seconds."""
    tag, content = item
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[0] >= "5" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("unexpected tag")
    if len(text) != 15 or text[14] != "Z":
        raise ValueError("unexpected form of time")
    year, month, day, hour, minute, second = (
        int(text[:4]), *(int(text[at : at + 2]) for at in range(4, 14, 2)),
    )  # fmt: skip
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days += _DAYS_BEFORE_MONTH[month - 1] + (is_leap and month > 2) + day - 1
    return (((days - _DAYS_TO_1970) * 24 + hour) * 60 + minute) * 60 + second
