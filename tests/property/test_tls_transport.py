"""Decrypting over TLS, however the stream is cut and however much of it one iteration allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.net.iteration import ROOM
from tests.fakes.tls import World
from tests.unit.net.tls.test_transport import Trickle

RECORDS = st.lists(
    st.one_of(
        st.just("update"),
        st.just("trickle"),
        st.sampled_from([1, 20, 1000, 16_384]),
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=30)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with TemporaryDirectory() as folder:
        yield World(Path(folder))


@settings(max_examples=60)
@given(RECORDS, CUTS, st.sampled_from([0, 1, ROOM]), st.booleans(), st.booleans())
def test_any_cut_and_any_budget_give_the_same_data(
    world: World,
    records: list[str | int],
    cuts: list[int],
    left: int,
    pauses: bool,
    with_handshake: bool,
) -> None:
    flood = Trickle(world)
    stream, sent = flood.make(records)
    if with_handshake:
        stream = flood.finished + stream
    else:
        flood.server.data_received(flood.finished)
    ends = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for at, end in pairwise(ends):
        budget = flood.iterations.budget
        budget.spend(budget.left - left)
        while not flood.server.wire.reads:
            flood.iterations.run()
            flood.server.resume_reading()
        flood.server.data_received(stream[at:end])
        if pauses and flood.server.is_open:
            flood.server.pause_reading()
    flood.server.resume_reading()
    flood.iterations.run()
    assert flood.got == sent
    assert flood.server.wire.reads
    assert flood.server.app.told == ["made"]
