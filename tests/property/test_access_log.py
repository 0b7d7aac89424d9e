"""Any request is one line of valid JSON, at most 8 KiB long, that says what the record says."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.settings.reporting import AccessLogMode
from lb.telemetry.access_log import MAX_LINE_BYTES, AccessLog
from tests.fakes.backends import make_backend
from tests.fakes.lines import KeptLines
from tests.fakes.records import PlainRecord
from tests.reference.access_line import fields

WIRE = st.binary(max_size=200)
LONG_WIRE = st.builds(
    lambda part, times: part * times, st.binary(max_size=12), st.integers(0, 9000)
)
TIMES = st.just(0.0) | st.floats(1.0, 1e7)


def make_record(wire: st.SearchStrategy[bytes]) -> st.SearchStrategy[PlainRecord]:
    facts: dict[str, st.SearchStrategy[Any]] = {
        "protocol": st.sampled_from(AppProtocol),
        "operation": st.builds(
            lambda name: Operation(name, OperationKind.OTHER), st.text(max_size=64)
        ),
        "method": wire,
        "path": wire,
        "model": wire,
        "request_id": wire,
        "backend": st.none() | st.text(max_size=64).map(make_backend),
        "attempts": st.integers(0, 100),
        "client": st.text(max_size=100),
        "status": st.integers(0, 999),
        "grpc_status": st.integers(-1, 2**31),
        "reason": st.none() | st.sampled_from(Reason),
        "bytes_in": st.integers(0, 2**62),
        "bytes_out": st.integers(0, 2**62),
    }
    for name in ("started_at", "placed_at", "connected_at", "first_byte_at", "ended_at"):
        facts[name] = TIMES
    return st.builds(PlainRecord, **facts)


def line_of(record: PlainRecord) -> bytes:
    log = AccessLog(KeptLines(), mode=AccessLogMode.ALL, sample=1.0, rng=Random(1))
    return log.line(record)


@given(make_record(WIRE))
def test_a_line_says_what_the_record_says(record: PlainRecord) -> None:
    said = json.loads(line_of(record))
    assert {name: said[name] for name in fields(record)} == fields(record)
    assert set(said) - set(fields(record)) == {"time", "request_id", "trace_id"}


@given(make_record(LONG_WIRE))
def test_a_request_is_one_line_whatever_it_carries(record: PlainRecord) -> None:
    line = line_of(record)
    assert len(line) <= MAX_LINE_BYTES
    assert line.endswith(b"}\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    json.loads(line)
