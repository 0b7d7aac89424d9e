"""A certificate's subject as one line of text (RFC 4514), fit for a header field.

Everything but visible ASCII is written as hexadecimal pairs, so that no name, whoever had it
certified, can end the line or hide a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 4514 section 3; other attributes keep the name that the TLS library gives them."""
_SPECIAL: Final = frozenset('"+,;<>\\')

Subject = Sequence[Sequence[tuple[str, str]]]
"""Relative names, most significant first, each of one or more attributes: the form in which
`ssl.SSLSocket.getpeercert` has it."""


def format_subject(subject: Subject) -> bytes:
    """Write a subject, the most specific name first: `CN=client,O=Example`."""
    names = (
        "+".join(f"{_SHORT.get(k, k)}={_escape(v)}" for k, v in name) for name in subject[::-1]
    )
    return ",".join(names).encode("ascii")


def _escape(value: str) -> str:
    last = len(value) - 1
    parts = []
    for at, char in enumerate(value):
        if char in _SPECIAL or (char == " " and at in (0, last)) or (char == "#" and not at):
            parts.append(f"\\{char}")
        elif " " <= char <= "~":
            parts.append(char)
        else:
            encoded = char.encode("utf-8", "surrogatepass")
            parts += [f"\\{byte:02X}" for byte in encoded]
    return "".join(parts)
