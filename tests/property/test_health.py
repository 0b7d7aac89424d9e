"""Properties of a port's health over every mixture of probes, live bytes and live failures."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.backend import BackendState, Health
from lb.health.port import Finding, PortHealth
from lb.health.thresholds import Thresholds

RULES = st.builds(
    Thresholds,
    interval_s=st.sampled_from((0.05, 1.0, 10.0)),
    timeout_s=st.sampled_from((0.1, 2.0, 5.0)),
    rise=st.integers(1, 4),
    fall=st.integers(1, 4),
)
FINDINGS = st.sampled_from(Finding)
EVENTS = st.lists(st.tuples(FINDINGS, st.booleans(), st.sampled_from(("", "refused", "doubted"))))


@given(rules=RULES, events=EVENTS)
def test_a_port_moves_only_for_a_reason(
    rules: Thresholds, events: list[tuple[Finding, bool, str]]
) -> None:
    port = PortHealth(rules)
    good = missed = 0
    now = 100.0
    for finding, lively, failure in events:
        before = port.health
        port.probe_sent(now)
        port.probed(finding, now + 0.05 if lively else 0.0)
        if not (finding is Finding.TIMEOUT and lively):
            good, missed = (good + 1, 0) if finding is Finding.READY else (0, missed + 1)
        if port.health is not before:
            if port.health is Health.HEALTHY:
                assert good >= (1 if before is Health.UNKNOWN else rules.rise)
            elif before is Health.HEALTHY:
                assert finding is Finding.REFUSED or missed >= rules.fall
        if failure == "refused":
            port.refused()
            assert port.health is Health.UNHEALTHY
            good = 0
        elif failure == "doubted":
            settled = port.health
            port.doubted()
            assert port.health is settled
        now += 1.0


@given(rules=RULES, events=EVENTS)
def test_enough_findings_in_a_row_always_decide(
    rules: Thresholds, events: list[tuple[Finding, bool, str]]
) -> None:
    port = PortHealth(rules)
    for finding, _, _ in events:
        port.probe_sent(1.0)
        port.probed(finding, 0.0)
    for finding, count, state in (
        (Finding.READY, rules.rise, BackendState.UP),
        (Finding.ERROR, rules.fall, BackendState.DOWN),
        (Finding.READY, rules.rise, BackendState.UP),
        (Finding.REFUSED, 1, BackendState.DOWN),
    ):
        for _ in range(count):
            port.probe_sent(1.0)
            port.probed(finding, 0.0)
        assert port.state is state


@given(
    rules=RULES,
    silence=st.floats(0.0, 20.0),
    byte_after=st.none() | st.floats(0.0, 5.0),
)
def test_suspected_means_silent_and_owing_for_long_enough(
    rules: Thresholds, silence: float, byte_after: float | None
) -> None:
    port = PortHealth(rules)
    port.probe_sent(10.0)
    port.probed(Finding.READY, 0.0)
    port.check_stall(0.0, 99.0)
    assert port.state is BackendState.UP
    port.probe_sent(100.0)
    quiet_since = 100.0 if byte_after is None else 100.0 + byte_after
    now = quiet_since + silence
    port.check_stall(0.0 if byte_after is None else quiet_since, now)
    assert (port.state is BackendState.SUSPECTED) == (now - quiet_since >= rules.suspect_after_s)
    port.probed(Finding.READY, 0.0)
    assert port.state is BackendState.UP


@given(rules=RULES, events=EVENTS, seed=st.integers(0, 2**32))
def test_the_next_probe_is_never_further_away_than_an_interval(
    rules: Thresholds, events: list[tuple[Finding, bool, str]], seed: int
) -> None:
    port = PortHealth(rules)
    rng = Random(seed)
    for finding, lively, failure in events:
        port.probe_sent(50.0)
        port.probed(finding, 50.1 if lively else 0.0)
        if failure == "refused":
            port.refused()
        elif failure == "doubted":
            port.doubted()
        wait_s = port.next_probe_at(rng) - 50.0
        assert 0.0 <= wait_s <= rules.interval_s * 1.1 + 1e-9
