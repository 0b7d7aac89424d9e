from __future__ import annotations

import pytest

from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.health.outlier_state import Phase
from lb.health.outliers import MAX_MODELS, OutlierRules, Outliers
from tests.fakes.outliers import USUAL_S, FakePool, backends


def warm(count: int = 3, **options: float) -> FakePool:
    pool = FakePool(count, **options)  # type: ignore[arg-type]
    pool.run(5.0, pool.good)
    assert pool.outliers.is_quiet
    return pool


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.DEVICE, Fault.CONNECTION])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_that_fails_always_is_out_within_ten_failures(fault: Fault, count: int) -> None:
    pool = warm(count)
    broken = pool.backends[1]
    pool.run(3.0, lambda backend: fault if backend is broken else pool.good(backend))
    assert [each[0] for each in pool.ejections] == [broken]
    assert pool.failures[broken] <= 10
    assert pool.outliers.is_out(broken, pool.now)


def test_it_comes_back_after_it_heals_and_stays() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(4.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    pool.run(3.0, pool.good)
    assert pool.outliers.is_quiet
    assert pool.run(30.0, pool.good).count(broken) > 2000
    assert len(pool.ejections) == 1


def test_ejections_double_up_to_the_limit_and_cost_a_request_each() -> None:
    pool = warm(rate=20.0)
    broken = pool.backends[1]
    pool.run(2000.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    # 5, 10, 20, 40, 80, 160, 300, 300, ... seconds.
    assert 10 <= len(pool.ejections) <= 12
    assert pool.failures[broken] <= 9 + len(pool.ejections)


def test_one_client_with_bad_requests_ejects_nobody() -> None:
    for share in (0.02, 0.3, 0.9):
        pool = warm(rate=1000.0)

        def answer(backend: Backend, pool: FakePool = pool, share: float = share) -> Fault | float:
            return Fault.ERROR if pool.random.random() < share else pool.good(backend)

        pool.run(15.0, answer)
        assert pool.ejections == [], share


def test_a_model_that_fails_everywhere_is_out_nowhere() -> None:
    for fault in (Fault.ERROR, Fault.DEVICE):
        for seed in range(10):
            pool = FakePool(seed=seed)
            pool.run(3.0, pool.good)
            faults = dict.fromkeys(pool.backends, fault)
            pool.run(5.0, faults.__getitem__)
            assert pool.outliers.is_quiet, (fault, seed)


def test_a_model_that_begins_to_fail_everywhere_brings_back_who_was_out_for_it() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    assert pool.outliers.is_out(broken, pool.now)
    pool.run(0.5, lambda _: Fault.ERROR)
    assert pool.outliers.is_quiet


def test_bursts_of_requests_that_fail_everywhere_make_no_later_ejection_longer() -> None:
    pool = warm()
    broken = pool.backends[1]
    for _ in range(5):
        pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
        (out,) = pool.outliers.out()
        assert out[2].until - out[2].ejected_at == pool.outliers.rules.base_s
        pool.run(0.5, lambda _: Fault.ERROR)
        assert pool.outliers.is_quiet
        pool.run(2.0, pool.good)
    assert len(pool.ejections) == 5


def test_other_models_of_a_backend_stay_in_while_most_are_good() -> None:
    pool = FakePool()
    broken = pool.backends[0]
    for model in (b"a", b"b", b"c"):
        pool.run(3.0, pool.good, model)
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend), b"a")
    assert pool.outliers.ejected(broken) == {b"a"}
    assert not pool.outliers.is_out(broken, pool.now)
    pool.run(1.0, lambda backend: Fault.DEVICE if backend is broken else pool.good(backend), b"b")
    assert pool.outliers.is_out(broken, pool.now)


def test_one_that_fails_for_a_third_of_its_requests_is_out() -> None:
    pool = warm()
    broken = pool.backends[2]

    def answer(backend: Backend) -> Fault | float:
        fails = backend is broken and pool.random.random() < 0.33
        return Fault.ERROR if fails else pool.good(backend)

    pool.run(20.0, answer)
    assert {each[0] for each in pool.ejections} == {broken}


def test_one_that_becomes_twenty_times_slower_is_out_within_three_seconds() -> None:
    pool = warm()
    slow = pool.backends[1]
    pool.run(3.0, lambda backend: pool.good(backend) * (20 if backend is slow else 1))
    assert [(each[0], each[2]) for each in pool.ejections] == [(slow, Fault.LATENCY)]
    # A trial that is still slow keeps it out.
    pool.run(5.0, lambda backend: pool.good(backend) * (20 if backend is slow else 1))
    assert len(pool.ejections) == 2
    pool.run(20.0, pool.good)
    assert pool.outliers.is_quiet


def test_one_with_little_traffic_that_becomes_slow_is_out() -> None:
    assert sum(map(_is_found_slow, range(20))) > 15


def _is_found_slow(seed: int) -> bool:
    """Whether that one is out, and no other, in a play with some chance in it."""
    pool = FakePool(rate=6.0, seed=seed)
    slow = pool.backends[1]
    pool.run(9.0, pool.good)
    pool.run(12.0, lambda backend: pool.good(backend) * (8 if backend is slow else 1))
    return {(each[0], each[2]) for each in pool.ejections} == {(slow, Fault.LATENCY)}


def test_nobody_is_out_for_being_slow_when_all_are() -> None:
    pool = warm()
    pool.run(20.0, lambda backend: 20 * pool.good(backend))
    assert pool.ejections == []


def test_a_backend_that_was_always_slower_is_not_out() -> None:
    pool = FakePool()
    small = pool.backends[0]
    pool.run(20.0, lambda backend: pool.good(backend) * (7 if backend is small else 1))
    assert pool.ejections == []


def test_a_short_pause_of_one_backend_is_no_reason() -> None:
    pool = warm()
    paused = pool.backends[0]
    for _ in range(10):
        pool.run(0.3, lambda backend: 0.4 if backend is paused else pool.good(backend))
        pool.run(2.0, pool.good)
    assert pool.ejections == []


def test_slow_ones_stay_where_less_than_half_would_be_left() -> None:
    pool = warm(4)
    slow = set(pool.backends[:3])
    pool.run(30.0, lambda backend: pool.good(backend) * (20 if backend in slow else 1))
    assert len({each[0] for each in pool.ejections}) <= 2


def test_answers_that_clients_do_not_wait_for_count_as_slow() -> None:
    pool = warm()
    hung = pool.backends[0]
    for _ in range(20):
        pool.now += 0.2
        pool.outliers.abandoned(hung, b"m", 50 * USUAL_S, pool.now)
    assert pool.outliers.ejected(hung) == {b"m"}


def test_a_lone_backend_is_never_out() -> None:
    pool = warm(1)
    pool.run(5.0, lambda _: Fault.DEVICE)
    assert pool.outliers.is_quiet


def test_a_process_that_was_replaced_begins_anew() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    assert pool.outliers.forget(broken)
    assert pool.outliers.is_quiet
    assert not pool.outliers.forget(broken)


def test_what_was_under_way_before_an_ejection_changes_nothing() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    assert not pool.outliers.answered(broken, b"m", 5.0, pool.now)
    assert not pool.outliers.failed(broken, b"m", Fault.ERROR, 5.0, pool.now)
    assert len(pool.ejections) == 1


def test_who_returned_is_out_again_sooner() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(4.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    pool.run(3.0, pool.good)
    assert pool.outliers.is_quiet
    before = pool.failures[broken]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    assert pool.outliers.is_out(broken, pool.now)
    assert pool.failures[broken] - before <= 3


def test_a_trial_that_brings_no_answer_is_given_again() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    outliers = pool.outliers
    outliers.judge(pool.backends, pool.now + 5.0)
    first = outliers.trials[b"m"]
    first.is_open = False
    assert not outliers.judge(pool.backends, pool.now + 6.0)
    assert outliers.judge(pool.backends, pool.now + 11.0)
    assert outliers.trials[b"m"] is not first


def test_a_model_that_nobody_asks_for_is_not_out_for_ever() -> None:
    pool = warm()
    broken = pool.backends[1]
    pool.run(1.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    pool.outliers.judge(pool.backends, pool.now + 6.0)
    pool.outliers.judge(pool.backends, pool.now + 70.0)
    assert pool.outliers.is_quiet


def test_good_answers_are_asked_for_only_as_samples_once_nothing_fails() -> None:
    pool = warm()
    backend = pool.backends[0]
    told = 0
    for _ in range(100):
        if backend.reports_due:
            told += 1
            pool.outliers.answered(backend, b"m", USUAL_S, pool.now)
    assert told <= 4


def test_a_run_of_failures_has_the_next_good_answer_told() -> None:
    pool = warm()
    backend = pool.backends[0]
    while backend.reports_due:
        pool.outliers.answered(backend, b"m", USUAL_S, pool.now)
    pool.outliers.failed(backend, b"m", Fault.ERROR, 0.001, pool.now)
    for _ in range(10):
        assert backend.reports_due > 0
        pool.outliers.answered(backend, b"other", USUAL_S, pool.now)
    pool.outliers.answered(backend, b"m", USUAL_S, pool.now)
    assert backend.reports_due == 0


def test_names_that_clients_make_up_are_not_kept_without_end() -> None:
    outliers = Outliers(OutlierRules())
    [backend] = backends(1)
    for n in range(5000):
        outliers.failed(backend, b"%d" % n, Fault.ERROR, 0.1, 10.0)
    assert len(outliers._outlier_states) == 2000
    outliers.judge([backend], 1000.0)
    assert not outliers._outlier_states


def test_names_that_clients_make_up_and_give_up_hide_no_broken_backend() -> None:
    pool = FakePool()
    for n in range(MAX_MODELS):
        pool.outliers.abandoned(pool.backends[n % 3], b"made-up-%d" % n, 0.1, pool.now)
    pool.run(5.0, pool.good)
    broken = pool.backends[1]
    pool.run(3.0, lambda backend: Fault.ERROR if backend is broken else pool.good(backend))
    assert pool.outliers.is_out(broken, pool.now)


def test_moves_tell_what_has_happened() -> None:
    pool = warm()
    broken = pool.backends[1]
    outliers = pool.outliers
    for _ in range(5):
        outliers.failed(broken, b"m", Fault.DEVICE, 0.001, pool.now)
    [move] = outliers.take_moves()
    assert (move.backend, move.model, move.phase) == (broken, b"m", Phase.EJECTED)
    assert (move.reason, move.seconds) == (Fault.DEVICE, 5.0)
    assert outliers.take_moves() == []


def test_many_backends_take_turns_with_samples() -> None:
    many = backends(100)
    outliers = Outliers(OutlierRules())
    outliers.judge(many, 10.0)
    assert sum(backend.reports_due for backend in many) == 40
    for tenth in range(1, 5):
        outliers.judge(many, 10.0 + tenth / 10)
    assert all(backend.reports_due for backend in many)


def test_connections_that_break_everywhere_now_and_then_eject_nobody() -> None:
    pool = warm()

    def answer(backend: Backend) -> Fault | float:
        return Fault.CONNECTION if pool.random.random() < 0.05 else pool.good(backend)

    pool.run(60.0, answer)
    assert pool.ejections == []
