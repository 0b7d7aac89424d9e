"""Records are slots only: they are made once per request."""

from __future__ import annotations

from lb.telemetry.record import RequestRecord


def test_a_record_has_no_dictionary() -> None:
    assert not hasattr(RequestRecord(), "__dict__")
