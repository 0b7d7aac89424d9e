"""Access as the settings ask for it: the gate, the admin API's, and the files of tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lb.access.gate import ControlRule, Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.admin.access import AdminAccess
from lb.domain.access import Role
from lb.domain.client import TrustedProxies
from lb.domain.errors import LoadBalancerError
from lb.settings.access import AccessSettings, ClientLimitSettings, TokenSettings, is_token
from lb.settings.model import Settings

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.9
"""How often files are looked at; a change counts once it was seen twice."""
_MAX_CHARACTERS: Final = 64 * 1024
_FOR_CLIENTS: Final = frozenset({Role.INFER, Role.CONTROL})
_FOR_ADMIN: Final = frozenset({Role.READ, Role.OPERATE})


class TokenFileError(LoadBalancerError):
    """A file of tokens cannot be used; the message says which and why, and holds no token."""


class _Reading(NamedTuple):
    """What a file held when it was looked at."""

    text: str
    problem: str = ""
    """Why it could not be read."""


class TokenKeeper:
    """Keeps the tokens of the settings in force, those of files as the files are."""

    def __init__(self, settings: Sequence[TokenSettings]) -> None:
        """Read all.

        Raises:
            TokenFileError: a file cannot be used.
        """
        self._settings = settings
        self.files = tuple(token.file for token in settings if token.file is not None)
        self._judged = self._seen = tuple(map(_read, self.files))
        """What the files held when they were last used, or found unfit; and at the last look."""
        self.book = TokenBook(_tokens(settings, self._judged))
        self.failures = 0
        """Counter: changed files that could not be used."""

    def look(self) -> None:
        """Use what has changed. A file may be seen half written, so it must hold still first;
        while one of them is unfit all tokens stay as they were."""
        before, self._seen = self._seen, tuple(map(_read, self.files))
        if self._seen == self._judged or self._seen != before:
            return
        self._judged = self._seen
        try:
            tokens = tuple(_tokens(self._settings, self._judged))
        except TokenFileError as error:
            self.failures += 1
            _log.error(
                "changed tokens cannot be used, the old ones stay", extra={"why": str(error)}
            )
            return
        self.book.replace(tokens)
        _log.info("tokens reloaded", extra={"files": ", ".join(self.files)})

    async def run(self, interval_s: float = INTERVAL_S) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(interval_s)
            self.look()


def _read(path: str) -> _Reading:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except OSError as error:
        return _Reading("", error.strerror or "cannot be read")
    except UnicodeDecodeError:
        return _Reading("", "not UTF-8 text")
    if len(text) > _MAX_CHARACTERS:
        # What is left of a token that was cut would be another one.
        return _Reading("", f"longer than {_MAX_CHARACTERS} characters")
    return _Reading(text)


def _tokens(settings: Sequence[TokenSettings], readings: Sequence[_Reading]) -> Iterator[Token]:
    """All tokens.

    Raises:
        TokenFileError: a reading holds none, or what cannot be one.
    """
    rest = iter(readings)
    for each in settings:
        roles = frozenset(each.roles)
        if each.token is not None:
            yield Token(each.name, digest_of(each.token.get_secret_value().encode()), roles)
        elif each.token_sha256 is not None:
            yield Token(each.name, bytes.fromhex(each.token_sha256.get_secret_value()), roles)
        else:
            for line in _lines(each.file or "", next(rest)):
                yield Token(each.name, digest_of(line.encode()), roles)


def _lines(path: str, reading: _Reading) -> list[str]:
    if reading.problem:
        raise TokenFileError(f"tokens of {path}: {reading.problem}")
    lines = [line for line in reading.text.splitlines() if line]
    if not lines or not all(map(is_token, lines)):
        raise TokenFileError(
            f"tokens of {path}: expected lines with 16 to 512 visible ASCII characters each"
        )
    return lines


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what, in a running process."""

    tokens: TokenKeeper
    gate: Gate
    admin: AdminAccess


def make_access(settings: Settings) -> Access:
    """Make what the settings ask for.

    Raises:
        TokenFileError: a file of tokens cannot be used.
    """
    access = settings.access
    tokens = TokenKeeper(access.tokens)
    return Access(
        tokens,
        Gate(_rules(access, settings.listen.proxies), tokens.book),
        _admin(settings, tokens.book),
    )


def _rules(access: AccessSettings, proxies: TrustedProxies) -> GateRules:
    control = access.control
    return GateRules(
        control=ControlRule(loopback=control.loopback, networks=control.networks),
        needs_token=any(Role.INFER in token.roles for token in access.tokens),
        header=access.header.lower().encode(),
        open_health=access.open_health,
        strict_shared_memory=access.strict_shared_memory,
        limits=tuple(map(_limit, access.limits)),
        proxies=proxies,
    )


def _limit(settings: ClientLimitSettings) -> LimitRule:
    limit = Limit(
        rate=settings.requests_per_second, burst=settings.depth, concurrent=settings.concurrent
    )
    return LimitRule(limit, by_token=settings.by == "token", by_header=settings.header.encode())


def _admin(settings: Settings, book: TokenBook) -> AdminAccess:
    listener = settings.listen.admin
    hosts = set(settings.admin.hosts)
    if listener is not None and listener.address.host:
        hosts.add(listener.address.host)
    asks = any(_FOR_ADMIN & set(token.roles) for token in settings.access.tokens)
    return AdminAccess(book if asks else None, hosts=frozenset(host.lower() for host in hosts))


def credential_fields(settings: Settings) -> frozenset[bytes]:
    """Headers of clients that hold tokens of ours, and are not for backends."""
    access = settings.access
    is_ours = any(_FOR_CLIENTS & set(token.roles) for token in access.tokens)
    if access.pass_on or not is_ours:
        return frozenset()
    return frozenset({access.header.lower().replace("_", "-").encode()})
