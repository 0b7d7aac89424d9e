"""Whatever a peer sends, an event is one line of printable text, in both formats."""

from __future__ import annotations

import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from lb.telemetry.logs import JsonFormatter, TextFormatter

_VALUES = st.one_of(st.text(), st.binary(), st.floats(), st.integers(), st.none(), st.booleans())
_LONG = st.builds(lambda part, times: part * times, st.text(max_size=5), st.integers(0, 5000))


@given(st.text(), st.one_of(_VALUES, _LONG))
def test_an_event_is_one_line(message: str, value: object) -> None:
    facts = {"name": "lb.test", "levelname": "INFO", "msg": message, "args": None}
    record = logging.makeLogRecord({**facts, "client": value})
    text = TextFormatter().format(record)
    assert text.isprintable()
    assert len(text) < 60_000
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert set(json.loads(line)) == {"time", "level", "logger", "message", "client"}
