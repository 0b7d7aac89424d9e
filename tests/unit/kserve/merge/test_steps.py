"""Work in steps."""

from __future__ import annotations

from lb.kserve.merge.steps import STEP_BYTES, LongText, Pace, Steps, finish


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


def test_the_last_step_of_a_long_text_has_few_pieces_left() -> None:
    text = LongText()
    pieces = [b"%d" % number for number in range(20_000)]
    for piece in pieces:
        text.add(b"," if text else b"", piece)
    assert len(text) < 1000
    assert text.finish(b"[", b"]") == b"[%b]" % b",".join(pieces)
