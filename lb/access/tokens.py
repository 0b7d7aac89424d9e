"""Tokens: what clients show to prove who they are (RFC 6750).

Only SHA-256 digests are kept and compared, each with all of them and in constant time, so that
neither memory nor timing gives a token away. Tokens are long and random, which is why a digest
without salt will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from lb.domain.access import Role

AUTHORIZATION: Final = b"authorization"
_SCHEME: Final = b"bearer"


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    name: str
    """For logs and metrics; several tokens may have it in common."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    roles: frozenset[Role]


class TokenBook:
    """The tokens in force. Replaced as a whole, when a file of tokens has changed."""

    __slots__ = ("generation", "tokens")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = tuple(tokens)
        self.generation = 0
        """Grows with every change: what was found before is to be looked up again."""

    def replace(self, tokens: Iterable[Token]) -> None:
        """Put other tokens in force."""
        self.tokens = tuple(tokens)
        self.generation += 1

    def find(self, digest: bytes) -> Token | None:
        """The token with this digest. Takes the same time whichever it is, or none."""
        found = None
        for token in self.tokens:
            if compare_digest(token.digest, digest):
                found = token
        return found


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return sha256(token).digest()


def shown_digest(header: bytes, values: Sequence[bytes]) -> bytes | None:
    """The digest of the token that a request shows.

    Args:
        header: its name in lower case; `authorization` holds `Bearer TOKEN`, any other one the
            token alone.
        values: of all its fields of that name. More than one is none: servers disagree on which
            counts.
    """
    if len(values) != 1:
        return None
    token = values[0].strip(b" \t")
    if header == AUTHORIZATION:
        scheme, _, token = token.partition(b" ")
        if scheme.lower() != _SCHEME:
            return None
        token = token.lstrip(b" ")
    return digest_of(token) if token else None
