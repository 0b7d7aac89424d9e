"""Fields that tell the backend who the client is: `X-Forwarded-*` and `Forwarded` (RFC 7239).

Off by default: added fields can reach a model through Triton's header-forward pattern. On, what
clients claim of themselves is dropped unless they are trusted proxies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lb.wire.http1.grammar import CRLF, trimmed

CLAIMS: Final = frozenset({
    b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port",
    b"x-forwarded-proto", b"x-real-ip",
})  # fmt: skip
"""Fields that say who a client is and how it came."""


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """What is known of a client connection."""

    address: bytes
    """Its IP address, or `unknown` (RFC 7239 6.2)."""
    scheme: bytes
    """`http` or `https`."""


def add_x_forwarded(upstream: bytes, origin: ClientOrigin, host: bytes) -> bytes:
    """Append the client to X-Forwarded-For; say scheme and host where nobody has yet.

    Args:
        upstream: a rebuilt request head with its empty line.
        origin: the client that the request came from.
        host: the request's Host; empty when it has none.
    """
    upstream = _append(upstream, b"X-Forwarded-For", origin.address)
    upstream = _provide(upstream, b"X-Forwarded-Proto", origin.scheme)
    return _provide(upstream, b"X-Forwarded-Host", host) if host else upstream


def add_forwarded(upstream: bytes, origin: ClientOrigin, host: bytes) -> bytes:
    """Append one element to Forwarded. Arguments as for `add_x_forwarded`."""
    address = origin.address
    node = b'"[%b]"' % address if b":" in address else address
    element = b"for=%b;proto=%b" % (node, origin.scheme)
    if host:
        element += b';host="%b"' % host
    return _append(upstream, b"Forwarded", element)


def add_field(upstream: bytes, name: bytes, value: bytes) -> bytes:
    """Add a field at the end of a rebuilt head."""
    return b"%b%b: %b\r\n\r\n" % (upstream[:-2], name, value)


def drop_fields(upstream: bytes, names: frozenset[bytes]) -> bytes:
    """Remove fields that a client must not send, however they are spelled.

    Args:
        upstream: a rebuilt request head with its empty line.
        names: in lower case, with hyphens. Many servers cannot tell an underscore from a hyphen,
            so neither do we.
    """
    start, *lines = upstream.split(CRLF)
    kept = [line for line in lines if canonical_name(line.partition(b":")[0]) not in names]
    return CRLF.join((start, *kept)) if len(kept) < len(lines) else upstream


def canonical_name(name: bytes) -> bytes:
    """A field name as servers may understand it that fold case and underscores."""
    return name.lower().replace(b"_", b"-")


def _append(upstream: bytes, name: bytes, element: bytes) -> bytes:
    """Make one line of a list field of what is there and `element`."""
    lines = upstream.split(CRLF)
    values = [trimmed(line[len(name) + 1 :]) for line in lines if _is(line, name)]
    kept = [line for line in lines[:-2] if not _is(line, name)]
    joined = b", ".join((*filter(None, values), element))
    return CRLF.join((*kept, b"%b: %b" % (name, joined), b"", b""))


def _provide(upstream: bytes, name: bytes, value: bytes) -> bytes:
    """Add a field unless it is there."""
    if any(_is(line, name) for line in upstream.split(CRLF)):
        return upstream
    return add_field(upstream, name, value)


def _is(line: bytes, name: bytes) -> bool:
    return line[: len(name) + 1].lower() == name.lower() + b":"
