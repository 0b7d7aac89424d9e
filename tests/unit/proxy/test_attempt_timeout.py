"""Attempts that take too long: found in time, once, and only where that was asked for."""

from __future__ import annotations

from math import inf

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.attempt_timeout import AttemptTimeout, AttemptTimes
from lb.proxy.exchange import Exchange
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.paper_streams import STREAM
from tests.wire.frames import call, data, headers, named, request_fields


class Bench:
    """Calls at three backends, which answer nothing."""

    def __init__(self, times: AttemptTimes, backends: int = 3) -> None:
        self.relay = PaperRelay(backends=backends)
        self.sides = [self.relay.backend(number) for number in range(backends)]
        self.client = self.relay.client()
        self.timeout = AttemptTimeout(times)
        self.relay.check_attempts(self.timeout)
        self._streams = -1

    def begins(self, model: bytes = b"m") -> Exchange:
        self._streams += 2
        before = set(self.relay.relay.under_way())
        self.client.sends(call(self._streams, named(model)))
        (one,) = set(self.relay.relay.under_way()) - before
        return one

    def use(self, times: AttemptTimes) -> None:
        """Other times, as after a reload."""
        self.timeout.configure(times)
        self.relay.monitor.wake()

    def wait(self, seconds: float) -> None:
        """Time passes, also for requests that go again a little later."""
        self.relay.loop.advance(seconds)
        self.relay.relay.flush()

    @property
    def late(self) -> int:
        """Attempts that were given up."""
        seen = self.relay.outcomes.seen
        assert {outcome for _, outcome in seen} <= {Outcome.LATE}
        return len(seen)


async def test_an_attempt_is_late_once_its_time_is_over() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    one = bench.begins()
    bench.wait(0.99)
    assert bench.late == 0
    bench.wait(0.2)
    assert (bench.late, one.attempts) == (1, 2)
    bench.wait(0.8)
    assert bench.late == 1
    bench.wait(0.4)
    assert (bench.late, one.attempts) == (2, 3), "the second attempt is another one"
    bench.wait(10.0)
    assert bench.late == 2, "there is no fourth"


async def test_one_that_may_not_go_elsewhere_is_asked_once_and_goes_on() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    bench.relay.run_once(b"m")
    one = bench.begins()
    bench.wait(20.0)
    assert (bench.late, one.attempts) == (0, 1)
    assert bench.relay.dispatcher.reruns.refused == {"never": 1}


async def test_each_model_has_its_own_time() -> None:
    bench = Bench(AttemptTimes(common=1.0, models={b"fast": 0.1, b"slow": 0.0}))
    common, fast, slow = bench.begins(), bench.begins(b"fast"), bench.begins(b"slow")
    bench.wait(0.2)
    assert [one.attempts for one in (common, fast, slow)] == [1, 2, 1]
    bench.wait(10.0)
    assert [one.attempts for one in (common, fast, slow)] == [3, 3, 1]


async def test_the_time_begins_when_all_of_the_request_has_come() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    bench.client.sends(headers(1, request_fields()) + data(1, named(b"m")[:8]))
    bench.client.sends(data(1, named(b"m")[8:]))
    (one,) = bench.relay.relay.under_way()
    bench.wait(5.0)
    bench.client.sends(data(1, end=True))
    bench.wait(0.8)
    assert one.attempts == 1
    bench.wait(0.5)
    assert one.attempts == 2


async def test_streams_take_the_time_that_they_take() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    bench.client.sends(headers(1, request_fields(path=STREAM)) + data(1, named(b"m"), end=True))
    bench.wait(5.0)
    assert bench.late == 0


async def test_other_times_hold_for_attempts_under_way() -> None:
    bench = Bench(AttemptTimes())
    one = bench.begins()
    bench.wait(100.0)
    assert bench.late == 0
    bench.use(AttemptTimes(common=1.0))
    bench.wait(0.2)
    assert one.attempts == 2
    bench.use(AttemptTimes())
    bench.wait(100.0)
    assert bench.late == 1


@pytest.mark.parametrize(
    ("times", "interval_s"),
    [
        (AttemptTimes(), inf),
        (AttemptTimes(common=1.0), 0.1),
        (AttemptTimes(common=1.0, models={b"m": 0.5, b"n": 0.0}), 0.05),
        (AttemptTimes(models={b"m": 0.01}), 0.02),
    ],
)
def test_attempts_are_checked_ten_times_within_the_shortest_time(
    times: AttemptTimes, interval_s: float
) -> None:
    assert AttemptTimeout(times).interval_s(0.0) == interval_s
