from __future__ import annotations

import pytest

from lb.health import configurations
from lb.health.configurations import ConfigurationBook, deviating
from tests.fakes.backends import make_backend

A, B, C, D = (make_backend(name) for name in "abcd")
M, N = (b"m", b"1"), (b"n", b"1")


def test_backends_that_differ_are_noticed_once() -> None:
    book = ConfigurationBook()
    assert not book.note(A, M, 1)
    assert not book.note(B, M, 1)
    assert not book.differing
    assert book.note(C, M, 2)
    assert not book.note(D, M, 3)
    assert book.differing[M] == {A: 1, B: 1, C: 2, D: 3}


def test_backends_that_agree_again_are_noticed_too() -> None:
    book = ConfigurationBook()
    book.note(A, M, 1)
    book.note(B, M, 2)
    book.note(B, M, 1)
    assert not book.differing
    assert book.note(B, M, 2)


def test_what_is_forgotten_is_compared_no_more() -> None:
    book = ConfigurationBook()
    for version in (M, N):
        book.note(A, version, 1)
        book.note(B, version, 2)
    book.forget_model(b"m", [B, C])
    assert book.differing.keys() == {N}
    assert (book.digest(A, M), book.digest(B, M)) == (1, None)
    book.forget(A, lambda version: version == N)
    assert not book.differing
    book.forget(A, lambda _: True)
    book.forget(B, lambda _: True)
    assert book.count == 0


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "MAX_DIGESTS", 1)
    book = ConfigurationBook()
    book.note(A, M, 1)
    assert book.is_full
    assert not book.note(B, M, 2)
    assert book.digest(B, M) is None
    book.note(A, M, 3)
    assert book.digest(A, M) == 3


def test_who_deviates_from_more_than_half_is_named() -> None:
    assert deviating({A: 1, B: 1, C: 2}, [A, B, C]) == {C}
    assert deviating({A: 1, B: 2}, [A, B]) == {A, B}
    assert deviating({A: 1, B: 2, C: 2}, [A, B]) == {A, B}
    assert deviating({A: 1, B: 1}, [A, B, C]) == frozenset()
    assert deviating({A: 1}, []) == frozenset()
