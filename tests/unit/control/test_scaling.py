"""How many backends the load needs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.control.scaling import HOLD_S, IDLE_S, TICK_S, Curve, Scaling, ScalingSignal
from lb.domain.load import LoadSample
from lb.net.timers import TimerWheel
from tests.fakes.clock import FakeLoop


class Server:
    """One that does so many at once: time by rate, as if it did one at a time faster (M/M/1)."""

    def __init__(self, service_s: float = 0.02, instances: int = 1) -> None:
        self.service_s = service_s
        self.instances = instances
        self.most = instances / service_s

    def time(self, rate: float) -> float:
        """Mean seconds of an answer; it cannot give quite as many as `most` a second."""
        busy = rate / self.most
        if busy >= 1.0:
            return inf
        return self.service_s * (1 + busy**self.instances / (1 - busy) / self.instances)


SINGLE = Server()


class Play:
    """A process whose backends answer as a function says."""

    def __init__(self, budget_s: float = 0.0, *, part: float = 1.0) -> None:
        self.scaling = Scaling(budget_s)
        self.part = part
        """Of the load that this process sees."""
        self.now = 50.0
        self.answered = self.seconds = self.refused = self.waiting = 0.0
        self.observe(0.0, 0.0, 1)

    def observe(
        self, rate: float, time_s: float, backends: int, *, refused: float = 0.0, waiting: float = 0
    ) -> int:
        """A tick with so many answers a second, each after `time_s`."""
        self.now += TICK_S
        self.answered += rate * TICK_S * self.part
        self.seconds += rate * TICK_S * self.part * time_s
        self.refused += refused * TICK_S * self.part
        sample = LoadSample(
            answered=int(self.answered),
            seconds=self.seconds,
            refused=int(self.refused),
            open=int((rate * time_s + waiting) * self.part),
            weight=float(backends),
            backends=backends,
        )
        self.scaling.observe(sample, self.now)
        return self.scaling.desired

    def run(self, rate: float, backends: int, server: Server, ticks: int = 40) -> int:
        """The same load for a while; what is wanted in the end."""
        for _ in range(ticks):
            most = 0.98 * server.most * backends
            came = rate * TICK_S + self.waiting
            answered = min(came, most * TICK_S)
            time_s = server.time(answered / TICK_S / backends)
            time_s += (self.waiting + came - answered) / 2 / most
            self.waiting = came - answered
            self.observe(answered / TICK_S, time_s, backends, waiting=self.waiting)
        return self.scaling.desired

    def follow(self, rate: float, backends: int, server: Server) -> int:
        """As `run`, by an autoscaler that does what it is told now and then."""
        for _ in range(40):
            backends = self.run(rate, backends, server, 15)
        return backends


def test_nothing_is_needed_before_anything_is_asked_for() -> None:
    assert Scaling().desired == 0
    play = Play()
    assert play.observe(0.0, 0.0, 3) == 0
    assert play.scaling.rate is None


def test_requests_that_find_no_backend_ask_for_one() -> None:
    play = Play()
    assert play.observe(0.0, 0.0, 0, refused=2.0) == 1
    play = Play()
    assert play.observe(0.0, 0.0, 0, waiting=4) == 1


def test_from_zero_as_many_as_were_learnt_to_be_needed() -> None:
    play = Play(0.05)
    play.follow(200.0, 10, SINGLE)
    for _ in range(int(2 * IDLE_S / TICK_S)):
        play.observe(0.0, 0.0, 2)
    assert play.scaling.desired == 0
    play.observe(0.0, 0.0, 0)
    for _ in range(3):
        play.observe(0.0, 0.0, 0, refused=200.0)
    assert play.scaling.desired in (7, 8)


@pytest.mark.parametrize("instances", [1, 2, 8])
@pytest.mark.parametrize("start", [2, 10, 40])
def test_it_finds_what_the_budget_allows_whatever_servers_do_at_once(
    instances: int, start: int
) -> None:
    server = Server(instances=instances)
    budget_s, load = 0.06, 500.0 * instances
    found = Play(budget_s).follow(load, start, server)
    assert server.time(load / found) <= 1.1 * budget_s
    enough = next(number for number in range(1, 99) if server.time(load / number) <= budget_s)
    assert found <= 1.25 * enough + 2


def test_a_burst_counts_at_once_and_noise_does_not() -> None:
    play = Play(0.06)
    for _ in range(12):
        play.observe(100.0, 0.02, 4)
    play.observe(105.0, 0.02, 4)
    assert play.scaling.demand == pytest.approx(101.7, abs=0.1), "the mean of three ticks"
    play.observe(200.0, 0.02, 4)
    assert play.scaling.demand == pytest.approx(200.0, abs=1.0)


def test_without_a_budget_twice_the_time_of_a_request_alone_is_wanted() -> None:
    server = SINGLE
    play = Play()
    for rate in (10.0, 50.0, 100.0, 200.0):
        play.run(rate, 10, server)
    found = play.follow(200.0, 10, server)
    assert 0.032 < server.time(200.0 / found) < 0.044


def test_a_budget_that_no_number_of_backends_can_meet_does_not_ask_for_all() -> None:
    server = SINGLE
    play = Play(0.001)
    for rate in (10.0, 100.0, 300.0):
        play.run(rate, 10, server)
    assert play.follow(300.0, 10, server) <= 40


def test_overload_asks_for_more_at_once() -> None:
    play = Play(0.06)
    play.run(40.0, 1, SINGLE)
    assert play.scaling.desired <= 2
    # Twice as much as it can do: half of it waits, longer and longer.
    assert 3 <= play.run(98.0, 1, SINGLE, 3) <= 6


def test_demand_goes_up_at_once_and_down_after_a_while() -> None:
    play = Play(0.06)
    play.run(100.0, 5, SINGLE)
    play.run(300.0, 15, SINGLE, 3)
    peak = play.scaling.demand
    assert peak == pytest.approx(300.0, rel=0.05)
    play.run(100.0, 15, SINGLE, int(HOLD_S / TICK_S) - 1)
    assert play.scaling.demand > 200.0
    play.run(100.0, 15, SINGLE, 3)
    assert play.scaling.demand == pytest.approx(100.0, rel=0.05)


def test_backends_that_have_become_slower_are_learnt_anew() -> None:
    play = Play(0.06)
    before = play.follow(500.0, 10, SINGLE)
    after = play.follow(500.0, before, Server(0.03))
    assert Server(0.03).time(500.0 / after) <= 0.066
    assert after > before


def test_what_is_made_up_for_says_nothing_about_backends() -> None:
    play = Play(0.06)
    play.run(200.0, 8, SINGLE)
    before = play.scaling.rate
    play.waiting = 3000.0
    play.run(200.0, 30, SINGLE, 3)
    assert play.scaling.rate == before
    assert play.waiting == 0.0


def test_weights_count() -> None:
    scaling = Scaling(0.06)
    answered, seconds = 0, 0.0
    for number in range(50):
        answered, seconds = answered + 1000, seconds + 1000 * 0.03
        scaling.observe(LoadSample(answered, seconds, 0, 6, 8.0, 2), 5.0 * number)
    # 200 a second by two backends of weight 4 each.
    assert scaling.curve.rate_within(0.06) == pytest.approx(1.25 * 25.0)
    assert scaling.rate == pytest.approx(1.25 * 100.0)
    assert scaling.desired == 2


@given(st.integers(1, 12), st.floats(50.0, 390.0), st.sampled_from([1, 4]))
def test_replicas_come_to_the_same_number(parts: int, load: float, instances: int) -> None:
    server = Server(instances=instances)
    alone, shared = Play(0.06), Play(0.06, part=1 / parts)
    for play in (alone, shared):
        for backends in (60, 30, 15, 8):
            play.run(load * instances, backends, server, 30)
    assert abs(shared.scaling.desired - alone.scaling.desired) <= 1 + alone.scaling.desired // 10


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100.0), st.floats(0.1, 50.0), st.integers(1, 500), st.floats(0.01, 900.0)
        ),
        max_size=30,
    ),
    st.floats(0.0, 10.0),
)
def test_no_history_makes_a_rate_that_is_none(
    history: list[tuple[float, float, int, float]], budget_s: float
) -> None:
    curve = Curve()
    for seconds, weight, count, work in history:
        curve.add(seconds, weight, count, work)
    rate = curve.rate_within(budget_s)
    assert rate is None or 0.0 < rate < 1.3 * max(
        count / seconds / weight for seconds, weight, count, _ in history
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 50), st.integers(0, 900), st.integers(0, 9)),
        max_size=40,
    )
)
def test_any_course_of_things_gives_a_number(
    course: list[tuple[int, int, int, int]],
) -> None:
    scaling = Scaling()
    answered = refused = 0
    seconds = 0.0
    for number, (more, turned_away, open_now, backends) in enumerate(course):
        answered, refused = answered + more, refused + turned_away
        seconds += more * 0.01 * (number % 7)
        sample = LoadSample(answered, seconds, refused, open_now, backends * 1.0, backends)
        scaling.observe(sample, number * TICK_S)
        assert scaling.desired >= 0


def test_it_looks_every_few_seconds_until_the_timers_are_closed() -> None:
    loop = FakeLoop()
    timers = TimerWheel(loop)
    counts = iter(range(0, 1000, 100))

    def read() -> LoadSample:
        count = next(counts)
        return LoadSample(count, count / 100, refused=0, open=1, weight=1.0, backends=1)

    signal = ScalingSignal(read)
    signal.keep(timers, loop.time)
    assert signal.status() == (0, 0.0, None)
    loop.advance(1.1 * TICK_S)
    status = signal.status()
    assert status.desired == 1
    assert 18.0 < status.demand <= 20.0
    assert next(counts) == 200
    timers.close()


def test_a_rate_is_halfway_to_the_next_level_known_where_that_is_far() -> None:
    curve = Curve()
    curve.add(10.0, 1.0, 250, 5.0)  # 25 a second, 20 ms each
    curve.add(10.0, 1.0, 500, 5000.0)  # 50 a second, after a long queue
    assert curve.rate_within(0.06) == pytest.approx(37.5)


def test_nothing_is_needed_without_demand_although_no_rate_was_learnt() -> None:
    play = Play()
    play.observe(2.0, 0.02, 1)
    assert play.scaling.rate is None
    assert play.scaling.needed_weight is None
    for _ in range(3):
        play.observe(0.0, 0.0, 1)
    assert play.scaling.needed_weight == 0.0


def test_the_needed_weight_is_that_of_the_latest_demand() -> None:
    play = Play(0.06)
    play.run(100.0, 4, SINGLE)
    before, desired = play.scaling.needed_weight, play.scaling.desired
    assert before is not None
    for _ in range(3):
        play.observe(10.0, 0.02, 4)
    now = play.scaling.needed_weight
    assert now is not None
    assert now < before / 5
    assert play.scaling.desired == desired, "an autoscaler is told for another minute"


def test_a_burst_that_is_late_counts_before_its_tick_is_over() -> None:
    play = Play(0.06)
    play.run(20.0, 1, SINGLE)
    before = play.scaling.needed_weight
    assert before is not None
    scaling = play.scaling
    start = LoadSample(int(play.answered), play.seconds, 0, 0, 1.0, 1)
    scaling.predict(start, play.now)
    for came, time_s, needs_more in ((25, 0.5, False), (80, 0.02, False), (80, 0.5, True)):
        answered, seconds = start.answered + came, start.seconds + came * time_s
        scaling.predict(start._replace(answered=answered, seconds=seconds), play.now + 1.0)
        now = scaling.needed_weight
        assert now is not None
        assert (now > 3 * before) is needs_more


def predicted(*samples: LoadSample) -> Scaling:
    scaling = Scaling(0.05)
    for number, sample in enumerate(samples):
        scaling.predict(sample, float(number))
    return scaling


def test_what_arrives_is_predicted_to_take_what_the_latest_took() -> None:
    scaling = predicted(LoadSample(0, 0.0, 0, 0, 1.0, 1), LoadSample(100, 6.0, 0, 6, 1.0, 1))
    assert scaling.predicted_s == pytest.approx(0.06)
    assert predicted(LoadSample(9, 1.0, 0, 0, 1.0, 1)).predicted_s == 0.0


def test_a_queue_counts_before_anybody_has_waited_in_it() -> None:
    before = LoadSample(0, 0.0, 0, 0, 1.0, 1)
    scaling = predicted(before, LoadSample(100, 2.0, 0, 60, 1.0, 1, queued=50))
    assert scaling.predicted_s == pytest.approx(0.5)


def test_few_inferences_are_looked_for_further_back() -> None:
    samples = [LoadSample(count, count * 0.1, 0, 0, 1.0, 1) for count in range(0, 30, 3)]
    assert predicted(*samples).predicted_s == pytest.approx(0.1)
