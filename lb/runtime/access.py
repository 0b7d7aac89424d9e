"""Access as the settings ask for it: the gate, the admin API's, and the files of tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lb.access.gate import ControlRule, Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.client import TrustedProxies
from lb.domain.errors import LoadBalancerError
from lb.net.files import read_text
from lb.settings.access import AccessSettings, ClientLimitSettings, TokenSettings, is_token
from lb.settings.model import Settings
from lb.settings.problems import shown
from lb.sharing.usage import UsageTable

_log = logging.getLogger(__name__)

_MAX_CHARACTERS: Final = 64 * 1024
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

    def poll(self) -> Callable[[], None]:
        """Read all files; see `Follower`."""
        seen = tuple(map(_read, self.files))
        return lambda: self._take(seen)

    def _take(self, seen: tuple[_Reading, ...]) -> None:
        """Use what has changed. A file may be seen half written, so it must hold still first;
        while one of them is unfit all tokens stay as they were."""
        before, self._seen = self._seen, seen
        if seen == self._judged or seen != before:
            return
        self._judged = seen
        try:
            tokens = tuple(_tokens(self._settings, self._judged))
        except TokenFileError as error:
            self.failures += 1
            _log.error(
                "changed tokens cannot be used, the old ones stay", extra={"why": str(error)}
            )
            return
        self.book.replace(tokens)
        _log.info("tokens reloaded", extra={"files": ", ".join(map(shown, self.files))})


def _read(path: str) -> _Reading:
    try:
        text = read_text(path, _MAX_CHARACTERS + 1)
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
        raise TokenFileError(f"tokens of {shown(path)}: {reading.problem}")
    lines = [line for line in reading.text.splitlines() if line]
    if not lines or not all(map(is_token, lines)):
        raise TokenFileError(
            f"tokens of {shown(path)}: expected lines with 16 to 512 visible ASCII characters each"
        )
    return lines


class AdminRules(NamedTuple):
    """What the admin API asks of requests: see `lb.admin.access.AdminAccess`."""

    tokens: TokenBook | None
    hosts: frozenset[str]


@dataclass(slots=True)
class Access:
    """Who may do what, in a running process."""

    settings: AccessSettings
    tokens: TokenKeeper
    gate: Gate
    admin_rules: AdminRules

    def replace(self, other: Access) -> None:
        """Take over what `make_access` made for other settings."""
        other.tokens.failures = self.tokens.failures
        counted = self.gate.requests
        other.gate.requests.update(
            {name: counted[name] for name in other.gate.requests if name in counted}
        )
        self.settings, self.tokens, self.gate = other.settings, other.tokens, other.gate
        self.admin_rules = other.admin_rules


def make_access(
    settings: Settings, before: Access | None = None, table: UsageTable | None = None
) -> Access:
    """Make what the settings ask for.

    Args:
        settings: those.
        before: what is in force. What clients have used up of limits that stay is taken over.
        table: by which workers tell each other what clients have used up; None: there are none.

    Raises:
        TokenFileError: a file of tokens cannot be used.
    """
    access = settings.access
    rules = _rules(access, settings.listen.proxies, before, table)
    if before is not None and before.settings == access and before.gate.rules == rules:
        tokens, gate = before.tokens, before.gate
    else:
        tokens = TokenKeeper(access.tokens)
        gate = Gate(rules, tokens.book)
    return Access(access, tokens, gate, _admin(settings, tokens.book))


def _rules(
    access: AccessSettings,
    proxies: TrustedProxies,
    before: Access | None,
    table: UsageTable | None,
) -> GateRules:
    control = access.control
    known: dict[ClientLimitSettings, LimitRule] = {}
    if before is not None:
        known.update(zip(before.settings.limits, before.gate.rules.limits, strict=True))
    return GateRules(
        control=ControlRule(loopback=control.loopback, networks=control.networks),
        needs_token=any(Role.INFER in token.roles for token in access.tokens),
        header=access.header.lower().encode(),
        open_health=access.open_health,
        strict_shared_memory=access.strict_shared_memory,
        limits=tuple(
            known.pop(each) if each in known else _limit(each, table) for each in access.limits
        ),
        proxies=proxies,
    )


def _limit(settings: ClientLimitSettings, table: UsageTable | None) -> LimitRule:
    limit = Limit(
        rate=settings.requests_per_second,
        burst=settings.depth,
        concurrent=settings.max_concurrent_requests,
        table=table,
        name=repr(settings).encode(),
    )
    return LimitRule(limit, by_token=settings.by == "token", by_header=settings.header.encode())


def _admin(settings: Settings, book: TokenBook) -> AdminRules:
    listener = settings.listen.admin
    hosts = set(settings.admin.hosts)
    if listener is not None and listener.address.host:
        hosts.add(listener.address.host)
    asks = any(_FOR_ADMIN & set(token.roles) for token in settings.access.tokens)
    return AdminRules(book if asks else None, frozenset(host.lower() for host in hosts))
