"""The text of request targets, for both protocols."""

from __future__ import annotations

from typing import Final

_VISIBLE: Final = rb"[!\"$-~]*+"
"""Visible ASCII but for `#`, which begins a fragment."""
_UTF_8: Final = (
    rb"(?:[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})"
)
"""One character above ASCII (RFC 3629 4): no overlong form, with which a slash or a dot could
pass a filter."""
ORIGIN_FORM: Final = rb"/" + _VISIBLE + rb"(?:" + _UTF_8 + _VISIBLE + rb")*+"
"""A path and a query. RFC 3986 wants characters above ASCII escaped. A Triton takes them as they
come, and decodes no escapes: to escape them would name another model."""
