"""The board of the workers, as its readers see it."""

from __future__ import annotations

import os
from errno import ENOSPC

import pytest

from lb.sharing.board import MAX_ENTRIES, STALE_S, Board, Entry, clear, key_of, size
from lb.sharing.memory import attach, create
from lb.sharing.memory import size as whole_size

KEY = key_of(b"backend", b"model")


def boards(count: int = 2) -> tuple[memoryview, list[Board]]:
    memory = memoryview(bytearray(size(count)))
    found = [Board(memory, index, count) for index in range(count)]
    for _ in range(2):
        for board in found:
            board.tick(0.0)
    return memory, found


def told(key: int, count: int, **more: float) -> Entry:
    entry = Entry(key)
    entry.count = count
    for name, value in more.items():
        setattr(entry, name, value)
    return entry


def counts(reader: Board) -> dict[int, int]:
    """What a reader learns from the changes."""
    entries = [reader.read(worker, number) for worker, number in reader.changes()]
    return {values[0]: values[1] for values in entries}


def test_a_reader_gets_all_that_was_written() -> None:
    _, (one, two) = boards()
    fields = {"high": 1, "rows": 7, "ends": 9, "samples": 3, "work_s": 0.25, "since": 12.5}
    sample = {
        "took_s": 0.125,
        "sample_rows": 4.0,
        "sample_size": 100.0,
        "alone_s": 0.25,
        "answered_from": 11.0,
    }
    entry = told(KEY, 2, **fields, **sample)
    one.write_sample(entry)
    one.write(entry)
    (place,) = two.changes()
    assert place == (0, 0)
    assert two.read(*place) == (KEY, 2, *fields.values())
    assert two.read_sample(*place) == tuple(sample.values())
    assert two.changes() == []


def test_others_know_that_a_worker_has_queued_something_as_long_as_it_lives() -> None:
    memory, (one, two) = boards()
    assert not two.has_queued_elsewhere()
    one.write_queued(3)
    assert two.has_queued_elsewhere()
    assert not one.has_queued_elsewhere()
    clear(memory, 0)
    assert not two.has_queued_elsewhere()
    one.write_queued(1)
    two.tick(STALE_S)
    assert not two.has_queued_elsewhere()


def test_a_late_reader_learns_the_last_of_more_changes_than_the_ring_has() -> None:
    _, (one, two) = boards()
    for number in range(5000):
        one.write(told(key_of(b"%d" % (number % 10)), number))
    assert sorted(counts(two).values()) == list(range(4990, 5000))


def test_a_worker_that_stands_still_is_not_counted_until_it_runs_again() -> None:
    _, (one, two) = boards()
    one.write(told(KEY, 2))
    assert counts(two) == {KEY: 2}
    two.tick(STALE_S)
    assert counts(two) == {KEY: 0}
    one.tick(STALE_S + 0.5)
    two.tick(STALE_S + 0.6)
    assert counts(two) == {KEY: 2}


def test_what_a_dead_worker_had_is_off_at_once() -> None:
    memory, (one, two) = boards()
    one.write(told(KEY, 2))
    assert counts(two) == {KEY: 2}
    clear(memory, 0)
    assert counts(two) == {KEY: 0}


def test_a_worker_that_was_started_again_begins_with_nothing() -> None:
    memory, (one, two) = boards()
    one.write(told(KEY, 2))
    counts(two)
    again = Board(memory, 0, 2)
    again.tick(0.0)
    assert counts(two) == {KEY: 0}
    again.write(told(key_of(b"other"), 1))
    assert counts(two) == {key_of(b"other"): 1}


def test_half_of_a_number_is_no_count() -> None:
    memory, (one, two) = boards()
    one.write(told(KEY, 2))
    for value in (-1, 1 << 40):
        for at in range(0, len(memory), 8):
            if memory[at : at + 8].cast("q")[0] == KEY:
                memory[at + 8 : at + 16].cast("q")[0] = value
        ((worker, number),) = {(0, 0)}
        assert two.read(worker, number)[1] == 0


def test_entries_without_load_are_used_again() -> None:
    _, (one, two) = boards()
    keys = [key_of(b"%d" % number) for number in range(MAX_ENTRIES + 1)]
    for key in keys[:-1]:
        assert one.write(told(key, 1))
    assert not one.write(told(keys[-1], 1))
    assert one.write(told(keys[0], 0))
    assert one.write(told(keys[-1], 1))
    assert counts(two) == dict.fromkeys(keys[1:], 1)


def test_keys_tell_names_apart_that_are_cut_otherwise() -> None:
    assert key_of(b"ab", b"c") != key_of(b"a", b"bc")


def test_workers_map_the_memory_that_was_made_for_them() -> None:
    descriptor = create(2)
    try:
        one, two = (Board(attach(descriptor, 2), index, 2) for index in range(2))
        one.tick(0.0)
        two.tick(0.0)
        one.write(told(KEY, 3))
        assert counts(two) == {KEY: 3}
        with pytest.raises(ValueError, match="size"):
            attach(descriptor, 3)
    finally:
        os.close(descriptor)


def test_missing_memory_is_an_error_that_says_how_much_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_descriptor: int, _begin: int, _length: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(
        OSError, match=rf"no {whole_size(2)} bytes of shared memory for 2 workers: No sp"
    ):
        create(2)
    assert set(os.listdir("/proc/self/fd")) <= before
