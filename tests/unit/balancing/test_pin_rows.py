"""Rows in the order of their last use."""

from __future__ import annotations

import gc
from collections import OrderedDict
from random import Random

from lb.balancing.pin_rows import NO_ROW, PinRows


def in_order(rows: PinRows, queue: int) -> list[bytes]:
    """The keys of a queue, taken out one after the other."""
    keys = []
    while (row := rows.oldest(queue)) != NO_ROW:
        keys.append(rows._keys[row])
        rows.remove(row)
    return keys


def test_a_row_is_found_by_its_key_until_it_is_removed() -> None:
    rows = PinRows()
    queue = rows.new_queue()
    row = rows.add(b"a", 7, queue, 1.5)
    assert rows.find(b"a") == row
    assert (rows.owner[row], rows.used[row], rows.queue[row]) == (7, 1.5, queue)
    assert rows.find(b"b") == NO_ROW
    rows.remove(row)
    assert rows.find(b"a") == NO_ROW
    assert rows.oldest(queue) == NO_ROW
    assert len(rows) == 0


def test_queues_keep_the_order_of_use_and_rows_change_between_them() -> None:
    rows = PinRows()
    first, second = rows.new_queue(), rows.new_queue()
    a, b, c = (rows.add(key, 0, first, 0.0) for key in (b"a", b"b", b"c"))
    rows.touch(a, first, 1.0)
    rows.touch(b, second, 2.0)
    rows.touch(c, second, 3.0)
    rows.touch(b, second, 4.0)
    assert in_order(rows, first) == [b"a"]
    assert in_order(rows, second) == [b"c", b"b"]


def test_it_agrees_with_ordered_dictionaries() -> None:
    rng = Random(3)
    rows = PinRows()
    queues = [rows.new_queue() for _ in range(3)]
    plain: list[OrderedDict[bytes, float]] = [OrderedDict() for _ in queues]
    for now in range(5000):
        key = b"%d" % rng.randrange(60)
        at = rng.randrange(3)
        row = rows.find(key)
        home = next((each for each in plain if key in each), None)
        assert (row == NO_ROW) == (home is None)
        if home is None:
            rows.add(key, at, queues[at], now)
            plain[at][key] = now
        elif rng.random() < 0.3:
            rows.remove(row)
            del home[key]
        else:
            del home[key]
            plain[at][key] = now
            rows.touch(row, queues[at], now)
        assert len(rows) == sum(map(len, plain))
    assert len(rows._keys) <= 60 + len(queues)
    assert [in_order(rows, queue) for queue in queues] == [list(each) for each in plain]


def test_the_garbage_collector_does_not_see_rows() -> None:
    rows = PinRows()
    queue = rows.new_queue()
    for number in range(2000):
        rows.add(b"%d" % number, 0, queue, 0.0)
    assert not any(gc.is_tracked(shard) for shard in rows._index)
