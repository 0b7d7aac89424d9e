"""Tokens are read strictly, found by digest, and never shown."""

from __future__ import annotations

import pytest

from lb.access.tokens import AUTHORIZATION, Token, TokenBook, digest_of, shown_digest
from lb.domain.access import Role

SECRET = b"0123456789abcdef"


def token(name: str, secret: bytes = SECRET) -> Token:
    return Token(name, digest_of(secret), frozenset({Role.INFER}))


def test_a_token_is_found_by_its_digest_and_no_other() -> None:
    book = TokenBook([token("a"), token("b", b"another-secret-0")])
    found = book.find(digest_of(b"another-secret-0"))
    assert found is not None
    assert found.name == "b"
    assert book.find(digest_of(SECRET + b"x")) is None
    assert TokenBook().find(digest_of(SECRET)) is None


def test_replaced_tokens_are_void_and_the_generation_tells() -> None:
    book = TokenBook([token("a")])
    before = book.generation
    book.replace([token("a", b"another-secret-0")])
    assert book.find(digest_of(SECRET)) is None
    assert book.generation != before


def test_neither_token_nor_digest_is_in_the_representation() -> None:
    text = repr(token("a"))
    assert SECRET.decode() not in text
    assert repr(digest_of(SECRET)) not in text
    assert digest_of(SECRET).hex() not in text


@pytest.mark.parametrize(
    "value", [b"Bearer " + SECRET, b"bearer " + SECRET, b"BEARER   " + SECRET, b" Bearer " + SECRET]
)
def test_a_bearer_token_is_read(value: bytes) -> None:
    assert shown_digest(AUTHORIZATION, [value]) == digest_of(SECRET)


@pytest.mark.parametrize(
    "value", [b"", b"Bearer", b"Bearer ", SECRET, b"Basic " + SECRET, b"Bearer" + SECRET]
)
def test_anything_else_is_no_token(value: bytes) -> None:
    assert shown_digest(AUTHORIZATION, [value]) is None


def test_another_header_holds_the_token_alone() -> None:
    assert shown_digest(b"x-api-key", [b" " + SECRET]) == digest_of(SECRET)
    assert shown_digest(b"x-api-key", [b"Bearer " + SECRET]) != digest_of(SECRET)


def test_two_fields_are_no_token_even_when_they_agree() -> None:
    value = b"Bearer " + SECRET
    assert shown_digest(AUTHORIZATION, [value, value]) is None
    assert shown_digest(AUTHORIZATION, []) is None
