"""The token that a request shows."""

from __future__ import annotations

from hashlib import sha256

from lb.access.tokens import AUTHORIZATION, Token, TokenBook, digest_of, shown_digest
from lb.domain.access import Role
from tests.fuzz.target import Target

_TOKEN = b"a-long-and-random-token"
_BOOK = TokenBook([Token("known", digest_of(_TOKEN), frozenset(Role))])


def _check(data: bytes) -> None:
    bearer = shown_digest(AUTHORIZATION, [data])
    alone = shown_digest(b"x-api-key", [data])
    value = data.strip(b" \t")
    assert alone == (sha256(value).digest() if value else None)
    assert (bearer is not None and _BOOK.find(bearer) is not None) == _is_ours(value)
    assert (alone is not None and _BOOK.find(alone) is not None) == (value == _TOKEN)
    for header in (AUTHORIZATION, b"x-api-key"):
        assert shown_digest(header, [data, data]) is None
        assert shown_digest(header, []) is None


def _is_ours(value: bytes) -> bool:
    """RFC 6750 2.1: the scheme, spaces, the token, and nothing else."""
    scheme, rest = value[:7].lower(), value[7:]
    return scheme == b"bearer " and rest.lstrip(b" ") == _TOKEN


TARGETS = (
    Target(
        "credentials",
        _check,
        (b"Bearer " + _TOKEN, b"bearer   " + _TOKEN + b" ", _TOKEN, b"Basic YTpi", b"Bearer"),
        (b" ", b"\t", b"Bearer ", b",", b"\0", b"=", _TOKEN),
    ),
)
