"""The text of request targets, for both protocols.

RFC 3986 wants characters above ASCII escaped. Servers and clients that do not care exist, so UTF-8
is taken from clients, and escaped for backends.
"""

from __future__ import annotations

from typing import Final

_VISIBLE: Final = rb"[!\"$-~]*+"
"""Visible ASCII but for `#`, which begins a fragment."""
_UTF_8: Final = (
    rb"(?:[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})"
)
"""One character above ASCII (RFC 3629 4). Overlong forms, in which a slash or a dot could pass a
filter, are none."""
ORIGIN_FORM: Final = rb"/" + _VISIBLE + rb"(?:" + _UTF_8 + _VISIBLE + rb")*+"
"""A path and a query."""
_SPELLED: Final = tuple(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in range(256))
"""Each byte as it may stand in a target."""


def escaped(target: bytes) -> bytes:
    """A target with each byte above ASCII percent-encoded."""
    # Without a call for each byte: there may be thousands.
    return target.decode("latin-1").translate(_SPELLED).encode("ascii")
