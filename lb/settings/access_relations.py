"""Rules that span several settings of access: as `lb.settings.relations`, on the plain tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from lb.domain.access import Role
from lb.domain.backend import Address
from lb.settings.problems import Path, show
from lb.settings.values import is_ip_address

_SOURCES: Final = ("token", "token_sha256", "file")
_FOR_CLIENTS: Final = frozenset({Role.INFER.value, Role.CONTROL.value})
_FOR_ADMIN: Final = frozenset({Role.READ.value, Role.OPERATE.value})

Entries = Sequence[Mapping[str, object]]


def check_tokens(tokens: Entries) -> Iterator[tuple[Path, str]]:
    """Each token is given once, and has a name of its own."""
    owners: dict[str, int] = {}
    for index, token in enumerate(tokens):
        path: Path = ("access", "tokens", index)
        given = [source for source in _SOURCES if source in token]
        if len(given) != 1:
            yield path, "exactly one of token, token_sha256 and file is needed"
        name = token.get("name")
        if isinstance(name, str) and owners.setdefault(name, index) != index:
            yield (*path, "name"), f"{show(name)} is already the name of tokens[{owners[name]}]"


def check_client_limits(limits: Entries, tokens: Entries) -> Iterator[tuple[Path, str]]:
    """Each limit limits something, and can tell clients apart."""
    for index, limit in enumerate(limits):
        path: Path = ("access", "limits", index)
        if not limit.get("requests_per_second"):
            if not limit.get("max_concurrent_requests"):
                yield path, "requests_per_second or max_concurrent_requests is needed"
            if limit.get("burst"):
                yield (*path, "burst"), "needs requests_per_second"
        if limit.get("by") == "token" and not _has_role(tokens, _FOR_CLIENTS):
            yield (*path, "by"), "there is no token with the role infer or control"


def check_tenants(scheduling: Mapping[str, object], tokens: Entries) -> Iterator[tuple[Path, str]]:
    """Tenants can be told apart."""
    if scheduling.get("tenants") == "token" and not _has_role(tokens, _FOR_CLIENTS):
        yield ("scheduling", "tenants"), "there is no token with the role infer or control"


def check_admin(
    admin: Mapping[str, object], address: Address | None, tokens: Entries
) -> Iterator[tuple[Path, str]]:
    """The admin API is not open to the world by accident."""
    if address is None or is_loopback(address) or admin.get("insecure"):
        return
    if not _has_role(tokens, _FOR_ADMIN):
        yield (
            ("listen", "admin"),
            f"{address} can be reached from elsewhere: needs an access.tokens entry with the role "
            "read or operate, or admin.insecure",
        )


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach an address."""
    if address.path or address.host == "localhost":
        return True
    return is_ip_address(address.host) and ip_address(address.host).is_loopback


def _has_role(tokens: Entries, wanted: frozenset[str]) -> bool:
    return any(wanted & _roles(token) for token in tokens)


def _roles(token: Mapping[str, object]) -> set[str]:
    roles = token.get("roles", [Role.INFER.value])
    return {str(role) for role in roles} if isinstance(roles, list) else set()
