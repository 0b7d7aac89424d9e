from __future__ import annotations

from random import Random

import pytest

from lb.domain.backend import BackendState
from lb.health.port import Finding, PortHealth
from lb.health.thresholds import Thresholds

READY, NOT_READY, REFUSED = Finding.READY, Finding.NOT_READY, Finding.REFUSED
TIMEOUT, ERROR = Finding.TIMEOUT, Finding.ERROR
STARTING, UP, SUSPECTED, DOWN = (
    BackendState.STARTING, BackendState.UP, BackendState.SUSPECTED, BackendState.DOWN,
)  # fmt: skip
RULES = Thresholds()
NEVER = 0.0


def port_after(*findings: Finding, at: float = 100.0) -> PortHealth:
    """A port whose probes found this, one per second, with no live traffic."""
    port = PortHealth(RULES)
    for step, finding in enumerate(findings):
        port.probe_sent(at + step)
        port.probed(finding, NEVER)
    return port


# Thresholds


@pytest.mark.parametrize(
    ("findings", "state"),
    [
        ((), STARTING),
        ((READY,), UP),
        ((NOT_READY,), DOWN),
        ((REFUSED,), DOWN),
        ((TIMEOUT,), DOWN),
        ((ERROR,), DOWN),
        ((READY, TIMEOUT, ERROR), UP),
        ((READY, TIMEOUT, ERROR, NOT_READY), DOWN),
        ((READY, ERROR, ERROR, READY, ERROR, ERROR), UP),
        ((READY, REFUSED), DOWN),
        ((READY, ERROR, REFUSED), DOWN),
        ((REFUSED, READY), DOWN),
        ((REFUSED, READY, READY), UP),
        ((REFUSED, READY, ERROR, READY), DOWN),
        ((REFUSED, READY, ERROR, READY, READY), UP),
    ],
)
def test_state_after_a_row_of_findings(findings: tuple[Finding, ...], state: BackendState) -> None:
    assert port_after(*findings).state is state


def test_a_timeout_is_no_news_while_live_traffic_brings_bytes() -> None:
    port = port_after(READY)
    for step in range(10):
        port.probe_sent(200.0 + step)
        port.probed(TIMEOUT, last_byte_at=200.5 + step)
    assert port.state is UP


def test_a_live_byte_from_before_the_probe_does_not_excuse_a_timeout() -> None:
    port = port_after(READY)
    for step in range(3):
        port.probe_sent(200.0 + step)
        port.probed(TIMEOUT, last_byte_at=199.9)
    assert port.state is DOWN


def test_live_bytes_do_not_excuse_a_wrong_answer() -> None:
    port = port_after(READY)
    for step in range(3):
        port.probe_sent(200.0 + step)
        port.probed(NOT_READY, last_byte_at=200.5 + step)
    assert port.state is DOWN


# Suspicion


def test_a_port_that_owes_an_answer_for_a_second_is_suspected() -> None:
    port = port_after(READY)
    port.probe_sent(200.0)
    port.check_stall(NEVER, 200.99)
    assert port.state is UP
    port.check_stall(NEVER, 201.0)
    assert port.state is SUSPECTED


def test_a_look_is_due_while_an_answer_is_owed_and_while_somebody_leaves() -> None:
    port = port_after(READY)
    assert port.is_at_ease
    port.probe_sent(200.0)
    assert not port.is_at_ease
    port.check_stall(NEVER, 201.5)
    assert not port.is_at_ease
    port.probed(READY, NEVER)
    assert port.is_at_ease
    port.sibling_closed(202.0)
    assert not port.is_at_ease
    port.check_stall(NEVER, 300.0)
    assert port.is_at_ease


def test_an_answer_clears_the_suspicion() -> None:
    port = port_after(READY)
    port.probe_sent(200.0)
    port.check_stall(NEVER, 201.5)
    port.probed(READY, NEVER)
    assert port.state is UP
    port.check_stall(NEVER, 300.0)
    assert port.state is UP


def test_a_live_byte_clears_the_suspicion_for_a_second() -> None:
    port = port_after(READY)
    port.probe_sent(200.0)
    port.check_stall(NEVER, 201.5)
    port.check_stall(201.6, 201.6)
    assert port.state is UP
    port.check_stall(201.6, 202.6)
    assert port.state is SUSPECTED


def test_bytes_that_came_just_after_the_probe_do_not_hide_a_stall() -> None:
    port = port_after(READY)
    port.probe_sent(200.0)
    port.check_stall(200.05, 201.04)
    assert port.state is UP
    port.check_stall(200.05, 201.05)
    assert port.state is SUSPECTED


def test_the_suspicion_outlives_the_timeout_and_the_next_probe() -> None:
    port = port_after(READY)
    port.probe_sent(200.0)
    port.check_stall(NEVER, 201.0)
    port.probed(TIMEOUT, NEVER)
    port.probe_sent(202.0)
    port.check_stall(NEVER, 202.1)
    assert port.state is SUSPECTED


def test_a_suspected_port_goes_down_after_enough_timeouts() -> None:
    port = port_after(READY)
    for step in range(3):
        port.probe_sent(200.0 + step)
        port.check_stall(NEVER, 201.5 + step)
        port.probed(TIMEOUT, NEVER)
    assert port.state is DOWN
    port.check_stall(NEVER, 300.0)
    assert port.state is DOWN


def test_a_port_that_never_answered_is_starting_and_not_suspected() -> None:
    port = PortHealth(RULES)
    port.probe_sent(200.0)
    port.check_stall(NEVER, 201.9)
    assert port.state is STARTING


# Live traffic


def test_a_refused_live_connection_takes_the_port_out_and_hurries_the_probe() -> None:
    port = port_after(READY, READY)
    port.refused()
    assert port.state is DOWN
    assert port.next_probe_at(Random(1)) == port.probe_sent_at + 0.1


def test_doubt_hurries_the_probe_and_nothing_else() -> None:
    port = port_after(READY, READY)
    port.doubted()
    assert port.state is UP
    assert port.next_probe_at(Random(1)) == port.probe_sent_at + 0.1
    port.probe_sent(200.0)
    port.probed(READY, NEVER)
    assert port.next_probe_at(Random(1)) > 200.8


# Schedule


def test_probes_come_every_100_ms_while_a_port_is_on_the_edge() -> None:
    for findings in ((READY, ERROR), (READY, ERROR, TIMEOUT), (REFUSED, READY)):
        port = port_after(*findings)
        assert port.next_probe_at(Random(1)) == port.probe_sent_at + 0.1


@pytest.mark.parametrize("findings", [(READY, READY), (REFUSED, REFUSED)])
def test_a_settled_port_is_probed_once_per_interval(findings: tuple[Finding, ...]) -> None:
    port = port_after(*findings)
    wait_s = port.next_probe_at(Random(1)) - port.probe_sent_at
    assert 0.9 <= wait_s <= 1.1


@pytest.mark.parametrize(
    ("silent_pause_s", "silent_s", "pause_s"),
    [
        (0.0, 1000, 1.0),  # few ports are silent
        (9.0, 5, 1.0),
        (9.0, 50, 5.0),  # a tenth of the time
        (9.0, 1000, 9.0),
    ],
)
def test_one_of_many_silent_ports_is_probed_less_the_longer_it_is_silent(
    silent_pause_s: float, silent_s: int, pause_s: float
) -> None:
    port = port_after(*[REFUSED] * (silent_s + 1))
    wait_s = port.next_probe_at(Random(1), silent_pause_s) - port.probe_sent_at
    assert wait_s == pytest.approx(pause_s, rel=0.1)
    port.awaited()
    assert port.next_probe_at(Random(1), silent_pause_s) == port.probe_sent_at + 0.1


def test_a_port_that_speaks_again_is_probed_once_per_interval() -> None:
    port = port_after(*[REFUSED] * 100, READY, READY)
    assert port.state is UP
    assert port.next_probe_at(Random(1), 60.0) <= port.probe_sent_at + 1.1


def test_second_probes_are_spread_over_the_interval() -> None:
    rng = Random(1)
    waits = [port_after(READY, at=0.0).next_probe_at(rng) for _ in range(200)]
    assert min(waits) < 0.05
    assert max(waits) > 0.95


def test_a_port_whose_sibling_closed_is_suspected_and_probed_often_until_it_comes_back() -> None:
    port = port_after(READY, READY)
    port.sibling_closed(101.5)
    assert port.state is SUSPECTED
    port.probe_sent(102.0)
    port.probed(READY, NEVER)
    port.check_stall(102.0, 102.1)
    assert port.state is SUSPECTED
    assert port.next_probe_at(Random(1)) == 102.1
    port.sibling_opened()
    assert port.state is UP
    assert port.next_probe_at(Random(1)) > 102.5


def test_a_port_that_is_down_is_not_brought_up_by_its_sibling() -> None:
    port = port_after(REFUSED)
    port.sibling_closed(101.0)
    assert port.state is DOWN
    port.sibling_opened()
    assert port.state is DOWN


def test_an_excused_time_out_is_no_reason_for_suspicion() -> None:
    port = port_after(READY, READY)
    port.probe_sent(200.0)
    port.excused()
    port.check_stall(NEVER, 300.0)
    assert port.state is UP
    port.probe_sent(300.0)
    port.check_stall(NEVER, 310.0)
    assert port.state is SUSPECTED


# Servers of which a part is ready


def test_a_server_that_is_not_ready_is_partial_while_it_has_a_model_ready() -> None:
    port = PortHealth(Thresholds())
    port.has_models = True
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    assert port.state is BackendState.PARTIAL
    port.has_models = False
    assert port.state is BackendState.UNREADY


def test_a_balancer_that_is_not_ready_has_none_of_the_models_that_it_listed() -> None:
    port = PortHealth(Thresholds(rise=2))
    port.has_models = True
    port.probed(Finding.NO_BACKEND_READY, 0.0)
    assert port.state is BackendState.UNREADY
    port.probed(Finding.READY, 0.0)
    assert port.state is BackendState.PARTIAL


def test_a_server_is_unready_only_after_it_has_said_so() -> None:
    port = PortHealth(Thresholds(rise=2))
    port.probed(Finding.REFUSED, 0.0)
    port.probed(Finding.READY, 0.0)
    states = [port.state]
    for finding in (Finding.MODELS_NOT_READY, Finding.READY, Finding.REFUSED):
        port.probed(finding, 0.0)
        states.append(port.state)
    assert states == [DOWN, BackendState.UNREADY, BackendState.UNREADY, DOWN]


def test_a_partial_server_may_miss_a_probe_or_two() -> None:
    port = PortHealth(Thresholds(fall=3))
    port.has_models = True
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    for expected in (BackendState.PARTIAL, BackendState.PARTIAL, DOWN):
        port.probe_sent(10.0)
        port.probed(Finding.TIMEOUT, 0.0)
        assert port.state is expected


def test_a_partial_server_is_suspected_while_it_is_silent() -> None:
    port = PortHealth(Thresholds(timeout_s=2.0))
    port.has_models = True
    port.probe_sent(9.0)
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    port.probe_sent(10.0)
    states = []
    for last_byte_at, now in ((0.0, 10.9), (0.0, 11.0), (11.1, 11.2), (11.1, 12.1)):
        port.check_stall(last_byte_at, now)
        states.append((port.state, port.is_hung))
    quiet, silent = (BackendState.PARTIAL, False), (BackendState.SUSPECTED, True)
    assert states == [quiet, silent, quiet, silent]
    port.probed(Finding.MODELS_NOT_READY, 11.1)
    assert (port.state, port.is_hung) == quiet


@pytest.mark.parametrize("finding", [Finding.REFUSED, Finding.NOT_READY])
def test_a_partial_server_that_exits_is_down(finding: Finding) -> None:
    port = PortHealth(Thresholds())
    port.has_models = True
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    port.probed(finding, 0.0)
    assert port.state is DOWN


def test_a_partial_server_that_refuses_live_traffic_is_down() -> None:
    port = PortHealth(Thresholds())
    port.has_models = True
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    port.refused()
    assert port.state is DOWN


def test_a_partial_server_is_up_once_it_is_ready() -> None:
    port = PortHealth(Thresholds(rise=2))
    port.has_models = True
    port.probed(Finding.MODELS_NOT_READY, 0.0)
    states = []
    for _ in range(2):
        port.probed(Finding.READY, 0.0)
        states.append(port.state)
    assert states == [BackendState.PARTIAL, BackendState.UP]


def test_a_server_that_says_that_it_is_not_ready_is_not_silent() -> None:
    health = PortHealth(Thresholds(fall=3))
    assert health.is_silent
    for finding in (Finding.READY, Finding.NOT_READY, Finding.NOT_READY, Finding.TIMEOUT):
        health.probe_sent(1.0)
        health.probed(finding, 0.0)
        assert not health.is_silent
    for _ in range(2):
        health.probe_sent(1.0)
        health.probed(Finding.TIMEOUT, 0.0)
    assert health.is_silent
    health.probed(Finding.NOT_READY, 0.0)
    assert not health.is_silent
    health.refused()
    assert health.is_silent
