"""What messages say by how they begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.pool import PoolSnapshot
from lb.proxy.exchange import RoutingHints
from lb.proxy.http2.prefix_cache import KnownPrefix, PrefixCache
from tests.fakes.backends import make_backends
from tests.fakes.relay import snapshot_of
from tests.wire.frames import named


def start_of(message: bytes) -> bytes:
    return message[: message[6] + 7]


@pytest.fixture
def snapshot() -> PoolSnapshot:
    return snapshot_of(make_backends(1))


def test_long_names_are_read_each_time(snapshot: PoolSnapshot) -> None:
    prefixes = PrefixCache()
    prefixes.learn(snapshot, bytes(300), b"n" * 128, is_plain=True)
    assert len(prefixes) == 0


def test_what_is_remembered_is_bounded(snapshot: PoolSnapshot) -> None:
    prefixes = PrefixCache()
    for number in range(3000):
        name = b"%d" % number
        prefixes.learn(snapshot, named(name), name, is_plain=True)
    assert len(prefixes) <= 1024


def work_of(prefixes: PrefixCache, message: bytes) -> KnownPrefix:
    known = prefixes.find(start_of(message))
    assert known is not None
    assert known.hints is not None
    return known


def test_what_never_repeats_is_remembered_now_and_then(snapshot: PoolSnapshot) -> None:
    prefixes = PrefixCache()
    heads = set()
    for number in range(160):
        message = named(b"first", b"%04d" % number)
        prefixes.learn_work(snapshot, message, b"first", RoutingHints(), len(message))
        heads.add(work_of(prefixes, message).head)
    assert 5 <= len(heads) <= 20
    later = replace(snapshot)
    hints = RoutingHints(rows=7)
    prefixes.learn_work(later, named(b"first", b"0160"), b"first", hints, 16)
    assert work_of(prefixes, named(b"first", b"0160")).hints is hints
    assert prefixes.snapshot is later


def test_batches_that_may_be_cut_are_remembered_apart(snapshot: PoolSnapshot) -> None:
    prefixes = PrefixCache()
    message = named(b"first", b"0001")
    hints = RoutingHints(rows=7)
    prefixes.learn_work(snapshot, message, b"first", hints, 16, may_be_cut=True)
    assert prefixes.find(start_of(message)) is None
    known = prefixes.find_batch(start_of(message))
    assert known is not None
    assert (known.hints, known.head) == (hints, message[:16])
    prefixes.learn(replace(snapshot), named(b"other", b""), b"other", is_plain=True)
    assert prefixes.find_batch(start_of(message)) is None, "it is of another pool"
