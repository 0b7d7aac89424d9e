from __future__ import annotations

from lb.control.ejection import leave_out
from lb.control.routes import Candidate, Tiers
from lb.domain.backend import Backend
from tests.fakes.backends import make_backend

READY = frozenset({(b"m", b"1"), (b"n", b"1")})
A, B, C, D = (make_backend(name) for name in "abcd")


def tiers(*backends: Backend, ready: frozenset[tuple[bytes, bytes]] | None = READY) -> Tiers:
    up = tuple(Candidate(each, ready) for each in backends)
    return Tiers(up=up, for_models=up)


def names(candidates: tuple[Candidate, ...]) -> str:
    return "".join(each.backend.name for each in candidates)


def test_who_is_out_is_used_when_nothing_better_is_left() -> None:
    found = leave_out(tiers(A, B, C), {B}, {B: frozenset({b"m"})}, 0.3)
    assert names(found.up) == names(found.for_models) == "ac"
    assert names(found.suspected) == "b"
    assert names(found.general) == "ac"


def test_one_of_two_may_be_out_and_the_last_one_never() -> None:
    assert names(leave_out(tiers(A, B), {B}, {}, 0.3).up) == "a"
    assert names(leave_out(tiers(A), {A}, {}, 0.3).up) == "a"
    assert names(leave_out(tiers(A, B), {A, B}, {}, 0.0).up) == "ab"


def test_all_are_used_when_too_few_would_be_left() -> None:
    assert names(leave_out(tiers(A, B, C), {A, B}, {}, 0.3).up) == "c"
    found = leave_out(tiers(A, B, C, D), {A, B, C}, {}, 0.3)
    assert names(found.up) == names(found.for_models) == "abcd"
    assert found.suspected == ()


def test_who_is_out_for_a_model_keeps_the_others() -> None:
    found = leave_out(tiers(A, B, C), (), {B: frozenset({b"m"})}, 0.3)
    assert names(found.up) == "abc"
    rest = frozenset({(b"n", b"1")})
    assert [each.ready for each in found.for_models] == [READY, rest, READY]


def test_a_model_stays_where_too_few_others_have_it() -> None:
    only = frozenset({(b"m", b"2")})
    found = leave_out(
        Tiers(for_models=(Candidate(A, READY), Candidate(B, READY | only))),
        (),
        {B: frozenset({b"m"})},
        0.3,
    )
    assert found.for_models[1].ready == frozenset({(b"n", b"1"), (b"m", b"2")})
    every = {each: frozenset({b"m"}) for each in (A, B)}
    assert leave_out(tiers(A, B), (), every, 0.3).for_models == tiers(A, B).for_models


def test_one_without_a_list_is_out_as_a_whole() -> None:
    found = leave_out(tiers(A, B, ready=None), (), {B: frozenset({b"m"})}, 0.3)
    assert names(found.up) == "a"
    assert names(found.suspected) == "b"
