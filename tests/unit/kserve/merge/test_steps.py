"""Work in steps."""

from __future__ import annotations

from lb.kserve.merge.steps import STEP_BYTES, Pace, Steps, finish


def test_all_steps_are_done_and_the_result_is_returned() -> None:
    done: list[int] = []

    def work() -> Steps[str]:
        for step in range(3):
            done.append(step)
            yield
        return "result"

    assert finish(work()) == "result"
    assert done == [0, 1, 2]


def test_a_step_ends_when_enough_is_done() -> None:
    pace = Pace()
    assert [pace.count(STEP_BYTES // 2) for _ in range(4)] == [False, True, False, True]
    assert pace.count(2 * STEP_BYTES)
