"""The meter counts what its plain reference counts, for any sequence of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.telemetry.meter import Meter
from tests.fakes.backends import make_backends
from tests.fakes.metrics import Counters
from tests.fakes.records import INFER, PlainRecord
from tests.reference.metering import count

BACKENDS = make_backends(0, 0)
OPERATIONS = (INFER, Operation("ServerReady", OperationKind.READ))
MODELS = (b"", b"a", b"b", b"c", b"x" * 300)
CODES = (-1, 0, 1, 14, 16, 17, 99, 200, 304, 400, 503, 599, 600, 70_000)
# Multiples of 2**-12 s add up exactly in any order.
TICKS = st.integers(0, 2**19).map(lambda ticks: ticks / 4096)


@st.composite
def records(draw: st.DrawFn) -> PlainRecord:
    protocol = draw(st.sampled_from(AppProtocol))
    return PlainRecord(
        protocol=protocol,
        operation=draw(st.sampled_from(OPERATIONS)),
        model=draw(st.sampled_from(MODELS)),
        backend=draw(st.sampled_from((None, *BACKENDS))),
        attempts=draw(st.integers(0, 3)),
        started_at=0.0,
        ended_at=draw(TICKS),
        bytes_in=draw(st.integers(0, 2**40)),
        bytes_out=draw(st.integers(0, 2**40)),
        status=draw(st.sampled_from(CODES)),
        grpc_status=draw(st.sampled_from(CODES)),
        reason=draw(st.sampled_from((None, *Reason))),
    )


@given(st.lists(records(), max_size=30), st.integers(0, 3))
def test_meter_agrees_with_its_reference(requests: list[PlainRecord], max_models: int) -> None:
    meter = Meter(max_models=max_models)
    for request in requests:
        meter.finished(request)
    expected = count(requests, max_models)
    names = {name for name, _ in expected}
    samples = Counters(backends=BACKENDS, meter=meter).samples()
    counted = {series: value for series, value in samples.items() if series[0] in names}
    assert {series for series in counted if counted[series]} == {
        series for series in expected if expected[series]
    }
    assert all(counted.get(series, 0) == value for series, value in expected.items())
