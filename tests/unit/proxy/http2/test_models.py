"""Models of calls by how their messages begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.pool import PoolSnapshot
from lb.proxy.http2.models import KnownModel, KnownModels, KnownWork
from tests.fakes.backends import make_backends
from tests.fakes.frames import named
from tests.fakes.relay import snapshot_of


def start_of(message: bytes) -> bytes:
    return message[: message[6] + 7]


@pytest.fixture
def snapshot() -> PoolSnapshot:
    return snapshot_of(make_backends(1))


def test_messages_that_begin_alike_are_for_the_same_model(snapshot: PoolSnapshot) -> None:
    models = KnownModels()
    models.learn(snapshot, named(b"first", b"\x01\x02"), b"first", is_plain=True)
    assert models.by_start(start_of(named(b"first", b"\x03\x04"))) == KnownModel(b"first", True)
    assert models.by_start(start_of(named(b"other", b"\x03\x04"))) is None
    assert models.by_start(start_of(named(b"first", b"longer"))) is None


def test_another_snapshot_makes_all_of_it_void(snapshot: PoolSnapshot) -> None:
    models = KnownModels()
    models.learn(snapshot, named(b"first"), b"first", is_plain=True)
    later = replace(snapshot)
    models.learn(later, named(b"other"), b"other", is_plain=False)
    assert models.snapshot is later
    assert len(models) == 1
    assert models.by_start(start_of(named(b"other"))) == KnownModel(b"other", False)


def test_long_names_are_read_each_time(snapshot: PoolSnapshot) -> None:
    models = KnownModels()
    models.learn(snapshot, bytes(300), b"n" * 128, is_plain=True)
    assert len(models) == 0


def test_what_is_remembered_is_bounded(snapshot: PoolSnapshot) -> None:
    models = KnownModels()
    for number in range(3000):
        name = b"%d" % number
        models.learn(snapshot, named(name), name, is_plain=True)
    assert len(models) <= 1024


def work_of(models: KnownModels, message: bytes) -> KnownWork:
    known = models.by_start(start_of(message))
    assert known is not None
    assert known.work is not None
    return known.work


def test_how_much_work_a_message_was_is_remembered_by_all_that_tells(
    snapshot: PoolSnapshot,
) -> None:
    models = KnownModels()
    message = named(b"first", b"head, and more")
    models.learn_work(snapshot, message, b"first", (b"2", 8, 1, message.index(b",")))
    work = work_of(models, message)
    assert (work.version, work.rows, work.priority) == (b"2", 8, 1)
    assert message.startswith(work.head)
    assert work.head.endswith(b"head")


def test_what_never_repeats_is_remembered_now_and_then(snapshot: PoolSnapshot) -> None:
    models = KnownModels()
    heads = set()
    for number in range(160):
        message = named(b"first", b"%04d" % number)
        models.learn_work(snapshot, message, b"first", (b"", number, 0, len(message)))
        heads.add(work_of(models, message).head)
    assert 5 <= len(heads) <= 20
    later = replace(snapshot)
    models.learn_work(later, named(b"first", b"0160"), b"first", (b"", 7, 0, 16))
    assert work_of(models, named(b"first", b"0160")).rows == 7
    assert models.snapshot is later
