"""What the scaling signal reads."""

from __future__ import annotations

from lb.control.scaling import TICK_S, LoadSample
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.net.timers import TimerWheel
from lb.runtime.scaling import ScalingSignal, load_sample
from lb.telemetry.meter import Meter
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
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
    ramping = make_backend("b", weight=2.0)
    ramping.set_share(0.5)
    snapshot = make_snapshot([make_backend("a"), ramping])
    assert load_sample(meter, snapshot, 7) == LoadSample(
        answered=4, seconds=1.5, refused=1, open=7, weight=2.0, backends=2
    )


def test_it_looks_every_few_seconds_until_the_timers_are_closed() -> None:
    loop = FakeLoop()
    timers = TimerWheel(loop)
    counts = iter(range(0, 1000, 100))

    def read() -> LoadSample:
        count = next(counts)
        return LoadSample(count, count / 100, refused=0, open=1, weight=1.0, backends=1)

    signal = ScalingSignal(0.0, read)
    signal.keep(timers, loop.time)
    assert signal.status() == (0, 0.0, None)
    loop.advance(1.1 * TICK_S)
    status = signal.status()
    assert status.desired == 1
    assert 18.0 < status.demand <= 20.0
    assert next(counts) == 200
    timers.close()
