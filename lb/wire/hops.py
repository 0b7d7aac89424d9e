"""The hop marker: which balancers a request has passed (RFC 8586, `CDN-Loop`).

Each running balancer has a random identity and adds it to every request that it sends. A request
that comes with our own identity has gone in a circle. The number of hops is limited as well, which
ends circles through ever other replicas. As the RFC allows, each hop adds a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

HOPS: Final = b"cdn-loop"
"""Request field with the identities of the balancers that a request has passed."""
READY_THROUGH: Final = b"triton-lb-ready-through"
"""Response field of an answer about readiness to a balancer: the identities of the balancers
between that one and the servers, nearest first. Where it says that nobody is ready: the balancer
that says so, alone."""
NOT_RUN: Final = b"triton-lb-not-run"
"""Response field of an error of ours to another balancer: the request did not run here, and why."""
MAX_HOPS: Final = 8
"""Balancers that a request may pass. Chains on purpose have two or three."""

_PREFIX: Final = b"triton-lb-"
_IDENTITY: Final = re.compile(rb"(?<![0-9A-Za-z._-])triton-lb-[0-9a-f]{16}(?![0-9A-Za-z._-])")
_SUFFIX_BYTES: Final = 8
"""Enough that two balancers of one chain never have the same identity, and nobody guesses one."""


def new_identity(random_bytes: Callable[[int], bytes]) -> bytes:
    """An identity for a balancer that starts.

    Args:
        random_bytes: returns so many random bytes.
    """
    return _PREFIX + random_bytes(_SUFFIX_BYTES).hex().encode()


def passed(value: bytes) -> tuple[bytes, ...]:
    """The identities of balancers in a field, in order. Members of other products are skipped,
    and so is what follows the first `MAX_HOPS`."""
    if _PREFIX not in value:
        return ()
    return tuple(_IDENTITY.findall(value)[:MAX_HOPS])


def loop_in(hops: tuple[bytes, ...], identity: bytes) -> str:
    """Why a request must go no further; empty where it may."""
    if identity in hops:
        return f"loop detected: the request has passed this load balancer before: {_show(hops)}"
    if len(hops) >= MAX_HOPS:
        return f"loop detected: the request has passed {MAX_HOPS} load balancers: {_show(hops)}"
    return ""


def _show(hops: tuple[bytes, ...]) -> str:
    return ", ".join(hop.decode() for hop in hops)
