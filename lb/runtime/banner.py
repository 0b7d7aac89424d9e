"""What `triton-lb serve` prints at a terminal once it serves: eight lines at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lb.domain.backend import Address

_URLS: Final = {
    "http": "http://{}",
    "https": "https://{}",
    "grpc": "{}",
    "grpcs": "{} (TLS)",
    "metrics": "http://{}/metrics",
    "admin": "http://{}/",
}
"""How clients write the address of each listener; those for gRPC take no scheme."""
_ROWS: Final = (
    ("HTTP", ("http", "https")),
    ("gRPC", ("grpc", "grpcs")),
    ("metrics", ("metrics",)),
    ("page", ("admin",)),
)
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Where this machine itself reaches a listener on all interfaces."""
_MOST_NAMED: Final = 3


def banner(
    addresses: Mapping[str, Address], ready: int, not_ready: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the lines.

    Args:
        addresses: where the process listens, by listener.
        ready: number of backends that are up.
        not_ready: name and state of each other backend.
    """
    of = ready + len(not_ready)
    lines = [f"triton-lb serves: {ready} of {of} backends ready"]
    if not_ready:
        named = ", ".join(f"{name} ({state})" for name, state in not_ready[:_MOST_NAMED])
        more = len(not_ready) - _MOST_NAMED
        lines.append(_row("not ready", f"{named} and {more} more" if more > 0 else named))
    for label, names in _ROWS:
        urls = [_url(name, addresses[name]) for name in names if name in addresses]
        if urls:
            lines.append(_row(label, "  ".join(urls)))
    if others := [str(addresses[name]) for name in addresses if name not in _URLS]:
        lines.append(_row("others", "  ".join(others)))
    return [*lines, _row("stop", "Ctrl-C; press it again to cut running requests")]


def _row(label: str, text: str) -> str:
    return f"  {label:9}  {text}"


def _url(name: str, address: Address) -> str:
    if address.path:
        return str(address)
    if (host := _EVERYWHERE.get(address.host)) is None:
        return _URLS[name].format(address)
    return _URLS[name].format(f"{host}:{address.port}") + " (all interfaces)"
