"""The codec's exception carries its answer."""

from __future__ import annotations

from lb.wire.http1.errors import MessageError


def test_status_and_text_are_kept() -> None:
    error = MessageError(431, "head too large")
    assert (error.status, error.text, str(error)) == (431, "head too large", "head too large")
