"""The gate: whether a request may pass, by its head, its client, and what the client has used up.

What a head says is read once and kept beside it as `Credentials`; heads that nothing is asked of
have none, so that their requests do not pay. A request that fails is refused before anything of it
is counted against limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lb.access.limits import Limit, client_key
from lb.access.origin import address_key
from lb.access.tokens import AUTHORIZATION, Token, TokenBook, shown_digest
from lb.domain.access import Role
from lb.domain.client import (
    NO_PROXIES,
    Client,
    IpAddress,
    IpNetwork,
    TrustedProxies,
    is_within,
    request_client,
)
from lb.domain.errors import RequestRefused
from lb.domain.operation import Operation, OperationKind, Treatment
from lb.domain.outcome import Reason

FieldLine = tuple[bytes, bytes]
"""Name in lower case, and value."""
_INFERENCES: Final = frozenset({OperationKind.INFERENCE, OperationKind.STREAM})
_FORWARDED_FOR: Final = b"x-forwarded-for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRule:
    """From where requests may change a server, without a token that allows it."""

    loopback: bool = True
    """From this very machine."""
    networks: tuple[IpNetwork, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit, and what tells clients apart for it."""

    limit: Limit
    by_token: bool = False
    by_header: bytes = b""
    """Name in lower case; with neither of them it is the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """What the gate asks of requests. The default asks nothing but where control comes from."""

    control: ControlRule = ControlRule()
    needs_token: bool = False
    """Requests need a token that allows them."""
    header: bytes = AUTHORIZATION
    """Where tokens stand; in lower case."""
    open_health: bool = True
    """Questions about our own health need no token and count toward no limit."""
    strict_shared_memory: bool = False
    """Inferences may use shared memory only where `control` or a token allows control."""
    limits: tuple[LimitRule, ...] = ()
    proxies: TrustedProxies = NO_PROXIES


class Credentials:
    """What a head says that matters here. Kept with the head, for all requests that repeat it."""

    __slots__ = (
        "digest", "forwarded_for", "generation", "headers", "is_control", "operation", "token",
    )  # fmt: skip

    def __init__(self, operation: Operation, *, is_control: bool) -> None:
        self.operation = operation
        self.is_control = is_control
        """It changes a server, however it is spelled."""
        self.digest: bytes | None = None
        """Of the token that it shows."""
        self.token: Token | None = None
        """The token in force with that digest, as of `generation`."""
        self.generation = -1
        self.headers: tuple[bytes, ...] = ()
        """By rule: what stands in the header that the rule counts by."""
        self.forwarded_for: Sequence[bytes] = ()
        """Values of `X-Forwarded-For`."""


class Permit:
    """What a request that passed holds of the limits, to be given back when it is over."""

    __slots__ = ("_held",)

    def __init__(self, held: list[tuple[Limit, bytes]]) -> None:
        self._held = held

    def release(self) -> None:
        """Give it back. Idempotent."""
        held, self._held = self._held, []
        for limit, client in held:
            limit.give_back(client)


class Gate:
    """Asks every request that has a claim."""

    def __init__(self, rules: GateRules | None = None, tokens: TokenBook | None = None) -> None:
        self.rules = rules = rules or GateRules()
        self._tokens = tokens or TokenBook()
        self._asks = rules.needs_token or bool(rules.limits)
        self.guards_regions = rules.strict_shared_memory
        """Requests must be looked into for shared memory."""
        self.asks_all = self._asks or bool(rules.proxies) or self.guards_regions
        """Whether heads may have a claim that are not about control."""
        self.noted: frozenset[bytes] = frozenset(self._noted_fields())
        """Names, in lower case, of the fields that `credentials` wants to see."""
        self.requests = {
            token.name: 0
            for token in self._tokens.tokens
            if token.roles & {Role.INFER, Role.CONTROL}
        }
        """Counter: requests that showed a token, by its name."""

    def _noted_fields(self) -> Iterable[bytes]:
        rules = self.rules
        if self._tokens.tokens or rules.needs_token:
            yield rules.header
        yield from (rule.by_header for rule in rules.limits if rule.by_header)
        if rules.proxies:
            yield _FORWARDED_FOR

    # Heads

    def credentials(
        self, operation: Operation, fields: Sequence[FieldLine], *, is_control: bool
    ) -> Credentials | None:
        """Read a head once.

        Args:
            operation: which call it is.
            fields: those of `noted`, in their order.
            is_control: it changes a server, or might to a lenient one.

        Returns:
            None when its requests may pass unasked.
        """
        rules = self.rules
        is_open = rules.open_health and operation.treatment is Treatment.ANSWER
        forwarded_for = _values(fields, _FORWARDED_FOR)
        # A proxy's client is to be known, if only for the log.
        is_asked = self._asks or forwarded_for or self._may_use_memory(operation)
        if not is_control and (is_open or not is_asked):
            return None
        credentials = Credentials(operation, is_control=is_control)
        credentials.digest = shown_digest(rules.header, _values(fields, rules.header))
        credentials.headers = tuple(
            client_key(b",".join(_values(fields, rule.by_header))) if rule.by_header else b""
            for rule in rules.limits
        )
        credentials.forwarded_for = forwarded_for
        return credentials

    def _may_use_memory(self, operation: Operation) -> bool:
        return self.guards_regions and operation.kind in _INFERENCES

    # Requests

    def identify(self, credentials: Credentials) -> Token | None:
        """Whose request it is, by its token."""
        digest = credentials.digest
        if digest is None:
            return None
        book = self._tokens
        if credentials.generation != book.generation:
            credentials.token = book.find(digest)
            credentials.generation = book.generation
        token = credentials.token
        if token is not None:
            self.requests[token.name] = self.requests.get(token.name, 0) + 1
        return token

    @property
    def generation(self) -> int:
        """Grows when tokens change."""
        return self._tokens.generation

    def has_revoked(self, credentials: Credentials | None) -> bool:
        """Whether a request that has passed with a token would be refused by now."""
        if credentials is None or credentials.digest is None or not self.rules.needs_token:
            return False
        token = self._tokens.find(credentials.digest)
        return token is None or Role.INFER not in token.roles

    def address(self, credentials: Credentials, client: Client) -> IpAddress | None:
        """Where a request comes from: the connection, or whom a trusted proxy speaks for."""
        return request_client(client, credentials.forwarded_for, self.rules.proxies)

    def admit(
        self, credentials: Credentials, token: Token | None, client: Client, now: float
    ) -> Permit | None:
        """Let a request pass.

        Args:
            credentials: of its head.
            token: what `identify` said.
            client: at the other end of its connection.
            now: monotonic seconds.

        Returns:
            What is to be released when the request is over; None when nothing is.

        Raises:
            RequestRefused: it may not.
        """
        rules = self.rules
        address = self.address(credentials, client)
        if rules.needs_token:
            self._check_token(credentials, token)
        if credentials.is_control:
            self._check_control(credentials, token, client, address)
        return self._take(credentials, token, address, now) if rules.limits else None

    def _check_token(self, credentials: Credentials, token: Token | None) -> None:
        if token is None:
            where = self.rules.header
            shown = "Authorization: Bearer TOKEN" if where == AUTHORIZATION else where.decode()
            raise RequestRefused(
                Reason.UNAUTHENTICATED, f"this request needs a valid token ({shown})"
            )
        if Role.INFER in token.roles or (credentials.is_control and Role.CONTROL in token.roles):
            return
        raise RequestRefused(Reason.FORBIDDEN, "this token does not have the role infer")

    def _check_control(
        self,
        credentials: Credentials,
        token: Token | None,
        client: Client,
        address: IpAddress | None,
    ) -> None:
        if not self._may_control(token, client, address):
            raise RequestRefused(
                Reason.CONTROL_REFUSED,
                f"{credentials.operation.name} changes a server, which this client may not; "
                "triton-lb allows it to access.control.networks and to tokens with the role "
                "control",
            )

    def _may_control(self, token: Token | None, client: Client, address: IpAddress | None) -> bool:
        rule = self.rules.control
        # A proxy that we trust speaks for others, wherever it runs.
        is_local = client.is_local and not client.is_trusted_proxy
        return (
            (rule.loopback and is_local)
            or (token is not None and Role.CONTROL in token.roles)
            or (address is not None and is_within(address, rule.networks))
        )

    def may_use_memory(self, credentials: Credentials | None, client: Client) -> bool:
        """Whether a request that was admitted may name regions of shared memory.

        Args:
            credentials: of its head, which `identify` has seen.
            client: at the other end of its connection.
        """
        return not self.guards_regions or self.may_control(credentials, client)

    def may_control(self, credentials: Credentials | None, client: Client) -> bool:
        """Whether a request that was admitted comes from somebody who may change a server.

        Args:
            credentials: of its head, which `identify` has seen.
            client: at the other end of its connection.
        """
        if credentials is None:
            return self._may_control(None, client, client.address)
        token = credentials.token if credentials.digest is not None else None
        return self._may_control(token, client, self.address(credentials, client))

    def _take(
        self, credentials: Credentials, token: Token | None, address: IpAddress | None, now: float
    ) -> Permit:
        rules = self.rules.limits
        held: list[tuple[Limit, bytes]] = []
        for rule, header in zip(rules, credentials.headers, strict=True):
            if rule.by_token:
                client = token.name.encode() if token is not None else b""
            else:
                client = header if rule.by_header else address_key(address)
            limit = rule.limit
            if limit.is_full(client):
                raise RequestRefused(
                    Reason.CONCURRENCY_LIMITED, "too many requests of this client at once"
                )
            wait_s = limit.wait_s(client, now)
            if wait_s:
                raise RequestRefused(
                    Reason.RATE_LIMITED,
                    "too many requests of this client",
                    retry_after_s=wait_s,
                )
            held.append((limit, client))
        for limit, client in held:
            limit.take(client, now)
        return Permit(held)


def _values(fields: Sequence[FieldLine], name: bytes) -> list[bytes]:
    return [value for field, value in fields if field == name]
