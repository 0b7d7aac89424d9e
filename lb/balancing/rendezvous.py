"""Choice by hash, on which replicas agree without telling each other.

Every replica computes the same score for each backend, and the highest wins; a backend that comes
or goes moves only what it gets or had (Thaler, Ravishankar: "Using name-based mappings to increase
hit rates", 1998). Weights: Schindelhauer, Schomaker: "Weighted distributed hash tables", 2005.

With a bound on the load (after Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded
loads", 2018) a sequence begins at the first of its `CHOICES` highest backends that has not more
than its share. Whoever looks for it later, without knowing the loads of then, asks these few in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from heapq import nlargest
from math import ceil, log
from typing import Final

from lb.domain.backend import Backend
from lb.domain.sequence import SequenceKey

CHOICES: Final = 3
"""As many attempts as a request has by default."""


def by_rendezvous(key: SequenceKey, candidates: Iterable[Backend]) -> Backend:
    """The backend of a sequence, by its key and the names and weights of all."""
    name = _hashable(key)
    return max(candidates, key=lambda backend: _score(name, backend))


def by_bounded_rendezvous(
    key: SequenceKey,
    candidates: Collection[Backend],
    open_on: Callable[[Backend], int],
    bound: float,
) -> Backend:
    """As `by_rendezvous`, but not where much more runs than elsewhere.

    Args:
        key: of a sequence that begins.
        candidates: to choose from; not empty.
        open_on: how many sequences of the model run on one.
        bound: how many times its share by weight each may have, 1 or more.
    """
    name = _hashable(key)
    first = nlargest(CHOICES, candidates, key=lambda backend: _score(name, backend))
    most = bound * (1 + sum(map(open_on, candidates))) / sum(b.spec.weight for b in candidates)
    for backend in first:
        if open_on(backend) < ceil(most * backend.spec.weight):
            return backend
    return min(first, key=lambda backend: open_on(backend) / backend.spec.weight)


def _hashable(key: SequenceKey) -> bytes:
    kind = b"s" if isinstance(key.id, str) else b"i"
    return kind + str(key.id).encode("utf-8", "surrogateescape") + b"\0" + key.model + b"\0"


def _score(name: bytes, backend: Backend) -> float:
    digest = blake2b(name + backend.name.encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
    return -backend.spec.weight / log(share) if share < 1.0 else float("inf")
