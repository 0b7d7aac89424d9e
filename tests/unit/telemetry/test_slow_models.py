"""Which requests count as slow for their model."""

from __future__ import annotations

from lb.telemetry.meter import Meter
from lb.telemetry.slow_models import LEAST, PERIOD_S, SlowModels
from tests.fakes.backends import make_backend
from tests.fakes.records import PlainRecord


class Setup:
    def __init__(self) -> None:
        self.now = 1000.0
        self.meter = Meter()
        self.slow = SlowModels(self.meter, lambda: self.now)
        self._backend = make_backend()

    def finish(self, took_s: float, times: int) -> None:
        for _ in range(times):
            self.meter.finished(
                PlainRecord(backend=self._backend, started_at=100.0, ended_at=100.0 + took_s)
            )

    def next_period(self) -> None:
        self.now += PERIOD_S
        self.slow.update()


def test_the_limit_is_the_bound_below_which_nearly_all_requests_were() -> None:
    setup = Setup()
    setup.finish(0.003, 990)
    setup.finish(0.7, 10)
    setup.slow.update()
    limit = setup.slow.limits[b"simple"]
    assert 0.003 <= limit < 0.1


def test_models_with_few_requests_have_no_limit() -> None:
    setup = Setup()
    setup.finish(0.003, LEAST - 1)
    setup.slow.update()
    assert setup.slow.limits == {}


def test_only_the_last_period_counts() -> None:
    setup = Setup()
    setup.finish(0.003, 1000)
    setup.slow.update()
    before = setup.slow.limits[b"simple"]
    setup.finish(0.7, 300)
    setup.slow.update()
    assert setup.slow.limits[b"simple"] == before  # the period is not over
    setup.next_period()
    assert setup.slow.limits[b"simple"] >= 0.7
    setup.next_period()
    assert setup.slow.limits == {}
