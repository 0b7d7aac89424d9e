"""Whatever requests meet, the book of outliers stays consistent with itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.fault import Fault
from lb.health.outlier_state import Phase
from lb.health.outliers import OutlierRules, Outliers
from tests.fakes.outliers import backends

_STEP = st.tuples(
    st.sampled_from(["good", "slow", "abandoned", "forget", "look", *Fault]),
    st.integers(0, 2),
    st.sampled_from([b"a", b"b"]),
    st.sampled_from([0.0, 0.01, 0.2, 3.0, 70.0]),
    st.integers(1, 12),
)


@given(st.lists(_STEP, max_size=150))
def test_the_book_is_consistent_after_anything(
    steps: list[tuple[object, int, bytes, float, int]],
) -> None:
    pool = backends(3)
    outliers = Outliers(OutlierRules())
    now = 100.0
    phases: dict[tuple[str, bytes], Phase] = {}
    for what, index, model, pause, times in steps:
        now += pause
        backend = pool[index]
        for _ in range(times):
            was_out = {(b.name, m) for b, m, _ in outliers.out()}
            match what:
                case "good":
                    changed = outliers.answered(backend, model, 0.02, now)
                case "slow":
                    changed = outliers.answered(backend, model, 2.0, now)
                case "abandoned":
                    changed = outliers.abandoned(backend, model, 2.0, now)
                case "forget":
                    changed = outliers.forget(backend)
                    for key in [each for each in phases if each[0] == backend.name]:
                        del phases[key]
                case "look":
                    changed = outliers.judge(pool, now)
                case fault:
                    assert isinstance(fault, Fault)
                    changed = outliers.failed(backend, model, fault, 0.001, now)
            out = {(b.name, m) for b, m, _ in outliers.out()}
            assert changed or out == was_out
            for move in outliers.take_moves():
                phases[move.backend.name, move.model] = move.phase
            # What was told is what is.
            told = {key for key, phase in phases.items() if phase is not Phase.SERVING}
            assert told == out
            # Somebody is left for each model that is in use.
            for each in (b"a", b"b"):
                assert len({name for name, of in out if of == each}) < 3
            for trial in outliers.trials.values():
                assert trial.backend.name in {name for name, _ in out}
            assert all(each.reports_due >= 0 for each in pool)
    # Time heals what nobody asks for.
    for _ in range(12):
        now += 301.0
        outliers.judge(pool, now)
    assert outliers.is_quiet
