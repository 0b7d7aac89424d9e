"""Settings of who may do what, and how often: tokens, control of the servers, limits, admin API."""

from __future__ import annotations

import math
import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr

from lb.domain.access import Role
from lb.settings.section import Section
from lb.settings.values import Count, FileName, HeaderName, Network, Number, ServerName

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}", re.ASCII)
_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_BY: Final = re.compile(r"address|token|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)
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


class TokenSettings(Section):
    """One token: a secret that is long and random, such as `openssl rand -hex 32` prints. It is
    given by exactly one of `token`, `token_sha256` and `file`."""

    name: Annotated[str, AfterValidator(_check_name)]
    """Whose it is, for logs and metrics."""
    token: Annotated[SecretStr, AfterValidator(_check_token)] | None = None
    """The token; better as `${NAME}` or `${file:PATH}` than in the file itself."""
    token_sha256: Annotated[SecretStr, AfterValidator(_check_digest)] | None = None
    """Its SHA-256 in hexadecimal, of the token alone, without a line end."""
    file: FileName | None = None
    """File that holds the token; several, one per line, are all good, so that a token can be
    replaced without a gap. A changed file is read within two seconds."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = (Role.INFER,)
    """`infer`: requests of clients, except for control; as soon as one token has it, all requests
    of clients need a token. `control`: load and unload of models, shared memory, trace and log
    settings, from anywhere. `read`: looking at the admin API; `operate`: changes there, too."""


class ControlSettings(Section):
    """From where clients may change servers without a token that has the role `control`: load and
    unload models, register and unregister shared memory, change trace and log settings. Others
    get 403 or PERMISSION_DENIED."""

    loopback: bool = True
    """From this machine: both ends of the connection are on loopback, or it is a Unix socket.
    Switch it off where something on this machine passes on requests of others, as the sidecar of
    a service mesh does."""
    networks: tuple[Network, ...] = ()
    """From these networks, such as `10.1.0.0/16`; `0.0.0.0/0` and `::/0` are everybody."""


class ClientLimitSettings(Section):
    """One limit, kept for each client on its own. A request must pass all of them; the others get
    429 with `Retry-After`, or RESOURCE_EXHAUSTED."""

    by: Annotated[str, AfterValidator(_check_by)]
    """What a client is: an `address` (of IPv6 its first 64 bits), a `token`, or `header:NAME`,
    each value of which is one, and requests without it are one together. Clients behind a proxy
    or ingress have its address, unless it is one of `listen.trusted_proxies`."""
    requests_per_second: Annotated[Number, Field(ge=0, le=100_000)] = 0.0
    """On average; 0 is no limit."""
    burst: Annotated[Count, Field(le=100_000)] = 0
    """Requests that may come at once after a pause; 0 is those of one second."""
    concurrent: Annotated[Count, Field(le=100_000)] = 0
    """Requests at once; 0 is no limit."""

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
    """Header that holds a client's token: `authorization` as `Bearer TOKEN`, any other one, such
    as `x-api-key`, the token alone. The admin API always takes `authorization`."""
    pass_on: bool = False
    """Pass that header on to the backends. Off, no backend sees it once there are tokens with the
    role infer or control."""
    open_health: bool = True
    """Answer questions about our liveness and readiness, and `grpc.health.v1`, without a token:
    Kubernetes and other load balancers ask them. They count toward no limit then."""
    tokens: tuple[TokenSettings, ...] = ()
    """All tokens, those of the admin API included."""
    control: ControlSettings = ControlSettings()
    strict_shared_memory: bool = False
    """Whether inferences may name regions of shared memory only where they may change servers, by
    `control` or by a token with that role; others get 403 or PERMISSION_DENIED. On, every
    inference is looked into."""
    limits: Annotated[tuple[ClientLimitSettings, ...], Field(max_length=16)] = ()
    """Limits per client."""


class AdminSettings(Section):
    """The admin API. It asks for tokens as soon as one has the role `read` or `operate`, and does
    not listen beyond loopback without."""

    hosts: tuple[ServerName, ...] = ()
    """Names under which it may be asked for, beside `localhost`, its own address and any IP
    address: others are refused, since a web page can have its own name lead here."""
    insecure: bool = False
    """Listen beyond loopback without tokens: whoever reaches it can take backends out."""
