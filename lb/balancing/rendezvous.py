"""Choice by hash, on which replicas agree without telling each other.

Every replica computes the same score for each backend, and the highest wins; a backend that comes
or goes moves only what it gets or had (Thaler, Ravishankar: "Using name-based mappings to increase
hit rates", 1998). Weights: Schindelhauer, Schomaker: "Weighted distributed hash tables", 2005.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import log

from lb.domain.backend import Backend
from lb.domain.sequence import SequenceKey


def by_rendezvous(key: SequenceKey, candidates: Iterable[Backend]) -> Backend:
    """The backend of a sequence, by its key and the names and weights of all."""
    name = _hashable(key)
    return max(candidates, key=lambda backend: _score(name, backend))


def _hashable(key: SequenceKey) -> bytes:
    kind = b"s" if isinstance(key.id, str) else b"i"
    return kind + str(key.id).encode("utf-8", "surrogateescape") + b"\0" + key.model + b"\0"


def _score(name: bytes, backend: Backend) -> float:
    digest = blake2b(name + backend.name.encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
    return -backend.spec.weight / log(share) if share < 1.0 else float("inf")
