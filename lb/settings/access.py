"""Settings of who may do what, and how often: tokens, control of the servers, limits, admin API."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr

from lb.domain.access import Role
from lb.settings.problems import Finding, show
from lb.settings.section import Section, one_needed
from lb.settings.values import (
    RELAY_HEADERS,
    AdminUrl,
    Boolean,
    Count,
    FileName,
    HeaderName,
    Network,
    Number,
    ServerName,
    text_schema,
)

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}", re.ASCII)
_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]{1,253}(?::[0-9]{1,5})?", re.ASCII)
_BY: Final = re.compile(r"address|token|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)
NO_CLIENT_TOKEN: Final = "there is no token with the role infer or control"
_BY_HEADER: Final = "header:"


def is_token(text: str) -> bool:
    """Whether a text will do as a token."""
    return _TOKEN.fullmatch(text) is not None


# Messages must not hold what was given: it is, or may be meant as, a secret.


def _check_token(token: SecretStr) -> SecretStr:
    if not is_token(token.get_secret_value()):
        raise ValueError("a token is 16 to 512 visible ASCII characters")
    return token


def _check_digest(digest: SecretStr) -> SecretStr:
    if not _DIGEST.fullmatch(digest.get_secret_value()):
        raise ValueError("expected the 64 hexadecimal digits of a SHA-256")
    return digest


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("expected a name of letters, digits and . _ @ -, at most 63")
    return name


def _check_by(by: str) -> str:
    if not _BY.fullmatch(by):
        raise ValueError("expected address, token or header:NAME")
    return by.lower()


def _check_origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("expected https://HOST or http://HOST, in lower case, :PORT if it has one")
    return origin


Origin = Annotated[str, AfterValidator(_check_origin), text_schema(_ORIGIN)]
"""Of a page in a browser (RFC 6454)."""


class TokenSettings(Section):
    """One token: a secret that is long and random, such as `openssl rand -hex 32` prints. It is
    given by exactly one of `token`, `token_sha256` and `file`."""

    model_config = one_needed("token", "token_sha256", "file")

    name: Annotated[str, AfterValidator(_check_name), text_schema(_NAME)]
    """Owner of the token, for logs and metrics; unique.

    Set this when you add a token; otherwise the configuration is refused."""
    token: Annotated[SecretStr, AfterValidator(_check_token), text_schema(_TOKEN)] | None = None
    """The token; better as `${NAME}` or `${file:PATH}` than in the file itself.

    Set this when the token comes from an environment variable; otherwise `token_sha256` or `file`
    is needed."""
    token_sha256: (
        Annotated[SecretStr, AfterValidator(_check_digest), text_schema(_DIGEST)] | None
    ) = None
    """SHA-256 of the token in hexadecimal, without a line end.

    Set this when the configuration must not hold the secret; otherwise `token` or `file` is
    needed."""
    file: FileName | None = None
    """File that holds the token. Several tokens, one per line, are all valid, so that a token can
    be replaced without a gap. A changed file is read within two seconds.

    Set this when a secret store writes the token to a file; otherwise `token` or `token_sha256` is
    needed."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = (Role.INFER,)
    """`infer`: requests of clients, except for control; once one token has this role, every client
    needs a token. `control`: load and unload models, change shared memory, trace and log settings,
    from anywhere. `read`: read the admin API. `operate`: change things there, too.

    Set this when a token is not for inference alone; otherwise it has the role `infer`."""

    def broken_rules(self) -> Iterator[Finding]:
        """The token is given in one way."""
        if [self.token, self.token_sha256, self.file].count(None) != 2:
            yield (), "exactly one of token, token_sha256 and file is needed"


class ControlSettings(Section):
    """Control calls load and unload models, register and unregister shared memory, and change trace
    and log settings. They need a token with the role `control`, or come from where these settings
    allow. Others get 403 or PERMISSION_DENIED."""

    loopback: Boolean = True
    """From this machine: both ends of the connection are on loopback, or it is a Unix socket.

    Set this to false when another program here forwards requests of others, as the sidecar of a
    service mesh does; otherwise those could unload models."""
    networks: tuple[Network, ...] = ()
    """From these networks, such as `10.1.0.0/16`; `0.0.0.0/0` and `::/0` are everybody.

    Set this when operators load models from other machines without a token; otherwise they get 403
    or PERMISSION_DENIED."""


class ClientLimitSettings(Section):
    """One limit, kept for each client on its own. A request must pass all of them; the others get
    429 with `Retry-After`, or RESOURCE_EXHAUSTED."""

    by: Annotated[str, AfterValidator(_check_by), text_schema(_BY)]
    """What identifies a client: `address` (for IPv6 its first 64 bits), `token`, or `header:NAME`;
    requests without the header count as one client. Clients behind a proxy share its address unless
    it is one of `listen.trusted_proxies`.

    Set this when you add a limit; otherwise the configuration is refused."""
    requests_per_second: Annotated[Number, Field(ge=0, le=100_000)] = 0.0
    """Requests per second on average; 0 is no limit.

    Set this when one client's request rate slows the others down; otherwise only
    `max_concurrent_requests` holds."""
    burst: Annotated[Count, Field(le=100_000)] = 0
    """Requests that may arrive at once after a pause; 0 is the number of one second.

    Set this when clients send requests in bursts and get 429; otherwise one second's requests may
    come at once."""
    max_concurrent_requests: Annotated[Count, Field(le=100_000)] = 0
    """Requests in flight at once; 0 is no limit. A gRPC stream counts as one request.

    Set this when one client fills the queue with long requests; otherwise only
    `requests_per_second` holds."""

    def broken_rules(self) -> Iterator[Finding]:
        """It limits something."""
        if not self.requests_per_second:
            if not self.max_concurrent_requests:
                yield (), "requests_per_second or max_concurrent_requests is needed"
            if self.burst:
                yield ("burst",), "needs requests_per_second"
        if self.header == "traceparent":
            yield ("by",), "traceparent is another one in each request"

    @property
    def header(self) -> str:
        """Name of the header that tells clients apart, in lower case; empty when none does."""
        return self.by.removeprefix(_BY_HEADER) if self.by.startswith(_BY_HEADER) else ""

    @property
    def depth(self) -> int:
        """The burst, as it is meant."""
        return self.burst or max(1, math.ceil(self.requests_per_second))


class AccessSettings(Section):
    """Who may do what, and how often; docs/access.md shows how it is used."""

    header: HeaderName = "authorization"
    """Header that holds a client's token: `authorization` as `Bearer TOKEN`, any other header, such
    as `x-api-key`, as the token alone. The admin API always uses `authorization`.

    Set this when clients send their token in another header; otherwise they get 401 or
    UNAUTHENTICATED."""
    pass_on: Boolean = False
    """Whether backends get that header. If not, it is removed once a token has the role infer or
    control.

    Set this when backends check the same token themselves; otherwise they never see it."""
    open_health: Boolean = True
    """Whether liveness, readiness and `grpc.health.v1` need no token. They then count toward no
    limit.

    Set this to false when strangers must not learn that we are up; otherwise Kubernetes and load
    balancers can ask."""
    tokens: tuple[TokenSettings, ...] = ()
    """All tokens, including those of the admin API.

    Set this when clients or operators must authenticate; otherwise nobody needs a token."""
    control: ControlSettings = ControlSettings()
    cors_origins: tuple[Origin, ...] = ()
    """Origins, such as `https://app.example.com`, whose pages may ask from browsers (CORS) for all
    that changes no server. Their requests need a token like any others.

    Set this when a web page calls the HTTP port itself; otherwise browsers keep responses from
    pages."""
    strict_shared_memory: Boolean = False
    """Whether inferences may name shared memory regions only if their client may change servers, by
    `control` or the role `control`; others get 403 or PERMISSION_DENIED. Every inference is then
    inspected.

    Set this when clients that do not trust each other share the Tritons; otherwise any client can
    read a region by its name."""
    limits: Annotated[tuple[ClientLimitSettings, ...], Field(max_length=16)] = ()
    """Limits per client.

    Set this when one client can starve the others; otherwise clients are not limited."""

    def broken_rules(self) -> Iterator[Finding]:
        """Tokens have names of their own, and limits can tell clients apart."""
        owners: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if (first := owners.setdefault(token.name, index)) != index:
                message = f"{show(token.name)} is already the name of tokens[{first}]"
                yield ("tokens", index, "name"), message
        for index, limit in enumerate(self.limits):
            if limit.by == "token" and self.lacks_role(Role.INFER, Role.CONTROL):
                yield ("limits", index, "by"), NO_CLIENT_TOKEN
        if self.header.lower() in RELAY_HEADERS:
            yield ("header",), "this header has another meaning"

    @property
    def token_headers(self) -> frozenset[str]:
        """Headers of clients that hold tokens of ours, and are not for backends."""
        if self.pass_on or self.lacks_role(Role.INFER, Role.CONTROL):
            return frozenset()
        return frozenset({self.header})

    def lacks_role(self, *roles: Role) -> bool:
        """Whether no token has one of these roles; unknown while tokens cannot be read."""
        is_known = "tokens" not in self.unreadable
        return is_known and all(set(roles).isdisjoint(token.roles) for token in self.tokens)


class AdminSettings(Section):
    """The admin API. It asks for tokens as soon as one has the role `read` or `operate`, and does
    not listen beyond loopback without."""

    hosts: tuple[ServerName, ...] = ()
    """Host names that requests to the admin API may use, beside `localhost`, its own address and
    any IP address. Other names are refused, since a web page can point its own name here (DNS
    rebinding).

    Set this when you reach the admin API by a DNS name; otherwise such requests are refused."""
    insecure: Boolean = False
    """Whether the admin API may listen beyond loopback without tokens: everybody who reaches it can
    then take backends out.

    Set this when a firewall alone protects the admin port; otherwise such a configuration is
    refused."""
    replicas: tuple[AdminUrl, ...] = ()
    """Admin APIs of other processes in front of the same backends, as `http://HOST:PORT`. The page
    links to them, and commands with `--all` ask them as well. A replica must accept the host name
    (`hosts`) and the token.

    Set this when several processes share the backends; otherwise each shows itself alone."""
