"""Inflating in steps: what each of them does, and what ends it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.kserve.inflation import GaveWay, inflated_in_steps
from lb.kserve.merge.steps import finish
from lb.wire.rope import Rope

PLENTY = 2**30


def always(_: int) -> bool:
    return True


@given(
    st.binary(max_size=2000), st.integers(1, 400), st.sampled_from([gzip.compress, zlib.compress])
)
def test_it_gives_what_was_compressed(
    plain: bytes, times: int, compress: Callable[[bytes], bytes]
) -> None:
    data = compress(plain * times)
    rope = Rope([data[:7], data[7:]])
    found = finish(inflated_in_steps(rope, len(plain) * times, always))
    assert found is not None
    assert found.joined() == plain * times


def test_no_step_inflates_much_of_a_bomb() -> None:
    held = 0

    def hold(size: int) -> bool:
        nonlocal held
        held += size
        return True

    largest = before = 0
    for _ in inflated_in_steps(Rope([gzip.compress(bytes(20 << 20))]), PLENTY, hold):
        largest, before = max(largest, held - before), held
    assert held == 20 << 20
    assert largest <= 1 << 18


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(bytes(1001)),
        gzip.compress(bytes(900))[:-1],
        gzip.compress(bytes(900)) + b"x",
        b"no such thing",
        b"",
    ],
    ids=["longer", "cut off", "followed", "broken", "empty"],
)
def test_what_cannot_be_inflated_to_so_much_is_none(data: bytes) -> None:
    assert finish(inflated_in_steps(Rope([data]), 1000, always)) is None


def test_an_owner_that_gives_way_ends_it() -> None:
    sizes = iter([True, False])
    with pytest.raises(GaveWay):
        finish(
            inflated_in_steps(Rope([gzip.compress(bytes(1 << 20))]), PLENTY, lambda _: next(sizes))
        )
