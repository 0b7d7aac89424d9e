"""What the relay role tells the control role."""

from __future__ import annotations

from lb.domain.load import LoadSample
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.proxy.role import load_sample
from lb.telemetry.meter import Meter
from tests.fakes.backends import make_backend
from tests.fakes.metrics import make_snapshot
from tests.fakes.records import PlainRecord, grpc_record


def test_inferences_count_and_those_that_more_backends_would_have_served() -> None:
    meter = Meter()
    for _ in range(3):
        meter.finished(grpc_record(started_at=1.0, ended_at=1.5))
    for reason, status in ((Reason.NO_BACKEND, 14), (Reason.RATE_LIMITED, 8)):
        record = grpc_record(reason=reason, grpc_status=status, started_at=1.0, ended_at=1.0)
        meter.finished(record)
    meter.finished(PlainRecord(operation=Operation("ServerReady", OperationKind.READ)))
    for kind in (OperationKind.READ, OperationKind.CONTROL, OperationKind.STREAM):
        meter.finished(PlainRecord(operation=Operation(kind.name, kind), reason=Reason.NO_BACKEND))
    ramping = make_backend("b", weight=2.0)
    ramping.set_share(0.5)
    snapshot = make_snapshot([make_backend("a"), ramping])
    assert load_sample(meter, snapshot, 7) == LoadSample(
        answered=4, seconds=1.5, refused=1, open=7, weight=2.0, backends=2
    )
