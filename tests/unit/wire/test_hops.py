"""The hop marker: identities, reading it, and what is a loop."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from lb.wire.hops import MAX_HOPS, loop_in, new_identity, passed

OURS = new_identity(bytes)
OTHERS = tuple(b"triton-lb-%016x" % number for number in range(1, 10))


def test_identities_differ_and_can_be_read() -> None:
    first, second = new_identity(os.urandom), new_identity(os.urandom)
    assert first != second
    assert passed(b"%b, %b" % (first, second)) == (first, second)


def test_members_of_others_are_skipped() -> None:
    value = b'a.cdn.example:80; trace="x", ' + OTHERS[0] + b"; b=c,triton-lb,," + OTHERS[1]
    assert passed(value) == OTHERS[:2]
    assert passed(b"other.cdn") == passed(b"") == ()


def test_what_only_looks_like_an_identity_is_none() -> None:
    for value in (b"x" + OURS, OURS + b"0", OURS + b".example", b"a-" + OURS, OURS.upper()):
        assert passed(value) == ()


def test_a_request_that_comes_back_is_a_loop() -> None:
    hops = (OTHERS[0], OURS, OTHERS[1])
    reason = loop_in(hops, OURS)
    assert reason.startswith("loop detected: ")
    assert all(hop.decode() in reason for hop in hops)
    assert loop_in(hops, OTHERS[2]) == ""


def test_the_number_of_hops_is_bounded() -> None:
    assert loop_in(OTHERS[: MAX_HOPS - 1], OURS) == ""
    assert loop_in(OTHERS[:MAX_HOPS], OURS).startswith("loop detected: ")


@given(st.binary(max_size=2000), st.lists(st.sampled_from(OTHERS), max_size=40))
def test_whatever_comes_what_is_kept_and_told_is_short(junk: bytes, hops: list[bytes]) -> None:
    found = passed(junk + b"," + b", ".join(hops))
    assert len(found) <= MAX_HOPS
    assert len(loop_in(found, OURS)) < 400
