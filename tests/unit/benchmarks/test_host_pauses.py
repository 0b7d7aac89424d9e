"""Pauses of the host are found in how long pieces of work took."""

import numpy as np

from benchmarks.host_pauses import Floats, near, pauses

_INTERVAL_S = 0.0015
_USUAL_S = 30e-6


def _pieces(slow: dict[int, float]) -> Floats:
    """Return 1,000 pieces of one processor. Some take a multiple of the usual time."""
    took = np.full(1000, _USUAL_S)
    for number, multiple in slow.items():
        took[number] *= multiple
    return np.column_stack([_INTERVAL_S * np.arange(1000), took])


def test_single_slow_pieces_are_no_pause() -> None:
    assert pauses([_pieces({100: 9.0, 101: 9.0, 500: 9.0})]) == []


def test_pieces_as_slow_as_a_busy_machine_makes_them_are_no_pause() -> None:
    assert pauses([_pieces(dict.fromkeys(range(100, 200), 2.0))]) == []


def test_a_pause_lasts_from_its_first_slow_piece_to_its_last() -> None:
    slow = dict.fromkeys((200, 203, 204, 209), 4.0)
    [(begin, end)] = pauses([_pieces(slow)])
    assert begin == 200 * _INTERVAL_S
    assert end == 209 * _INTERVAL_S + 4.0 * _USUAL_S


def test_pauses_of_two_processors_that_overlap_are_one() -> None:
    first = _pieces(dict.fromkeys((200, 203, 206, 800, 801, 802), 4.0))
    second = _pieces(dict.fromkeys((204, 207, 210), 4.0))
    found = pauses([first, second])
    assert [round(begin / _INTERVAL_S) for begin, _ in found] == [200, 800]
    assert [round(end / _INTERVAL_S) for _, end in found] == [210, 802]


def test_moments_near_a_pause() -> None:
    moments = np.array([0.9, 0.96, 1.0, 1.05, 1.2, 1.3])
    found = near(moments, [(1.0, 1.1)], before_s=0.05, after_s=0.15)
    assert found.tolist() == [False, True, True, True, True, False]
