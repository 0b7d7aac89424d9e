"""Default limits are those that the configuration documents."""

from __future__ import annotations

from lb.wire.http1.limits import HeadLimits


def test_defaults_are_the_documented_ones() -> None:
    assert HeadLimits() == HeadLimits(head_bytes=32768, line_bytes=8192, fields=100)
