"""Field types of the settings that need more than a range: addresses, counts, headers, paths."""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lb.domain.backend import Address, parse_address
from lb.domain.client import IpNetwork
from lb.settings.problems import Substituted, show

_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})", re.ASCII)
_ZONE: Final = re.compile(r"(?!25[A-Za-z])[A-Za-z0-9_.-]{1,15}", re.ASCII)
"""Name or number of an interface (RFC 4007), which `%25` begins only in URLs (RFC 6874)."""
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)
_FIELD_VALUE: Final = re.compile(r"[!-~](?:[\t -~]*[!-~])?|", re.ASCII)
_DNS_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?", re.ASCII)
_PATH: Final = re.compile(r"/[!-~]*", re.ASCII)
_ADMIN_URL: Final = re.compile(
    r"http://(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?", re.ASCII
)


RELAY_HEADERS: Final = frozenset({
    "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te",
    "traceparent", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers with a meaning for the relay itself: no setting may name them. What a request may do is
decided once for all heads that differ only in their `traceparent`."""


class AddressFamily(StrEnum):
    """Which addresses of servers are used that have several."""

    AUTO = "auto"
    IPV4 = "ipv4"
    IPV6 = "ipv6"


_SCHEMES = ("http://", "https://", "grpc://", "grpcs://")


def read_address(value: object) -> Address:
    """Check and parse an address to listen on; port 0 lets the system choose a free one.

    Raises:
        ValueError: with a message that says what was expected.
    """
    if isinstance(value, Address):
        return value
    expected = f"expected HOST:PORT, [IPV6]:PORT or unix:PATH, got {show(value)}"
    if isinstance(value, str) and value.startswith(_SCHEMES):
        raise ValueError(f"drop {value.partition('://')[0]}://: {expected}")
    if not isinstance(value, str) or "://" in value:
        raise ValueError(expected)
    if "/" in value and not value.startswith("unix:"):
        raise ValueError(f"drop the path: {expected}")
    try:
        address = parse_address(value)
    except ValueError as error:
        # The error quotes parts of the value.
        raise ValueError(expected if isinstance(value, Substituted) else str(error)) from error
    if address.path:
        return address
    if value.startswith("["):
        try:
            zone = IPv6Address(address.host).scope_id
        except ValueError as error:
            host = show(value if isinstance(value, Substituted) else address.host)
            raise ValueError(f"{host} is not an IPv6 address") from error
        if zone is not None and not _ZONE.fullmatch(zone):
            host = show(value if isinstance(value, Substituted) else address.host)
            raise ValueError(f"{host}: expected an interface after %, as in fe80::1%eth0")
    elif not _HOST.fullmatch(address.host):
        raise ValueError(expected)
    return address


def read_target(value: object) -> Address:
    """Check and parse an address to connect to.

    Raises:
        ValueError: with a message that says what was expected.
    """
    address = read_address(value)
    if not address.path and address.port == 0:
        raise ValueError("a backend's port must be 1 to 65535, got 0")
    return address


def address_as_mapping(value: object) -> object:
    """Let a plain address stand for a mapping with nothing but `address`.

    Raises:
        ValueError: when it is neither.
    """
    return value if isinstance(value, dict) else {"address": read_address(value)}


def _refuse_boolean(value: object) -> object:
    # Python's True is an int, so pydantic would read `weight: true` as 1.
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {show(value)}")
    return value


def read_boolean(value: object) -> object:
    """Check a boolean; a variable of the environment holds it as text, there also as 1 or 0.

    Raises:
        ValueError: it is another word or a number, which pydantic would take for one.
    """
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {show(value)}")
    return value


def _check_header_name(name: str) -> str:
    if not _FIELD_NAME.fullmatch(name):
        raise ValueError("not a valid header name")
    return name


def _check_header_value(value: str) -> str:
    # The value is not shown: it may be a secret.
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError("a header value is one line of visible ASCII, without spaces around it")
    return value


def _check_admin_url(url: str) -> str:
    """Check `http://HOST:PORT`, and return it without a `/` at its end."""
    if not _ADMIN_URL.fullmatch(url):
        raise ValueError(f"expected http://HOST:PORT, got {show(url)}")
    bare = url.removesuffix("/")
    read_target(bare.removeprefix("http://"))
    return bare


def _check_path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError(f"expected a path such as /v2/health/ready, got {show(path)}")
    return path


def _check_file(path: str) -> str:
    # Not the text of a file instead of its name, which a message would show.
    if not path or any(character < " " for character in path):
        raise ValueError("expected the path of a file")
    return path


def keep_reference(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """Keep what a text was made of, for messages: pydantic makes a plain text of it."""
    checked = check(value)
    return value if isinstance(value, Substituted) else checked


def _check_server_name(name: str) -> str:
    if not _HOST.fullmatch(name) and not is_ip_address(name):
        raise ValueError(f"expected a host name, got {show(name)}")
    return name


def is_ip_address(text: str) -> bool:
    """Whether a host is given by its number."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_dns_name(name: str) -> str:
    # RFC 1035 3.1: labels of 63 octets, 255 in all; underscores as in RFC 2782.
    if not _DNS_NAME.fullmatch(name) or len(name) > 253:
        raise ValueError(f"expected a DNS name, got {show(name)}")
    return name


def _check_name(name: str) -> str:
    if not name.isprintable() or not name or "/" in name or name != name.strip():
        raise ValueError(f"expected a printable name without slashes, got {show(name)}")
    if name in (".", ".."):
        raise ValueError(f"clients leave {name} out of URLs; expected another name")
    return name


def read_network(value: object) -> IpNetwork:
    """Check and parse a network, `192.0.2.0/24`, or a single address.

    Raises:
        ValueError: with a message that says what was expected.
    """
    if isinstance(value, IpNetwork):
        return value
    try:
        # ip_network takes numbers, too, as addresses.
        return ip_network(value) if isinstance(value, str) else ip_network("")
    except ValueError as error:
        hint = ": bits are set beyond its length" if "host bits" in str(error) else ""
        raise ValueError(
            f"expected a network such as 192.0.2.0/24, got {show(value)}{hint}"
        ) from error


def read_switch(value: object) -> bool | Literal["auto"]:
    """Check and parse a switch that may be left to us.

    Raises:
        ValueError: with a message that says what was expected.
    """
    # Text, too: it may come from a variable of the environment.
    if value == "auto":
        return "auto"
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError(f"expected true, false or auto, got {show(value)}")
    return value == "true"


def read_proxy(value: object) -> IpNetwork | str:
    """Check and parse a network, or the word `unix`.

    Raises:
        ValueError: with a message that says what was expected.
    """
    return "unix" if value == "unix" else read_network(value)


def text_schema(pattern: re.Pattern[str], **more: object) -> WithJsonSchema:
    """The JSON schema of a text that a pattern matches as a whole."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern.pattern})$", **more})


_ANY_HOST: Final = rf"(?:{_HOST.pattern}|\[[0-9A-Fa-f:.]+\])"
_PORT: Final = "0*(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})"
_NETWORK: Final = {
    "type": "string",
    "pattern": "^[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?$",
    "examples": ["192.0.2.0/24", "2001:db8::/32"],
}
_LISTEN_ADDRESS: Final = {
    "type": "string",
    "pattern": f"^(?:unix:.+|{_ANY_HOST}:{_PORT})$",
    "examples": ["127.0.0.1:8000", "[::1]:8000", "unix:/run/triton-lb.sock"],
    "description": "HOST:PORT, [IPV6]:PORT or unix:PATH.",
}
_TARGET_ADDRESS: Final = _LISTEN_ADDRESS | {
    "pattern": f"^(?:unix:.+|{_ANY_HOST}:(?!0+$){_PORT})$",
    "examples": ["10.0.0.1:8000", "triton.example:8001", "unix:/run/triton.sock"],
}


class AddressAlone:
    """Lets an address stand for a mapping with nothing but `address` in the JSON schema, too."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [_LISTEN_ADDRESS, handler(schema)]}


ListenAddress = Annotated[
    Address,
    PlainValidator(read_address),
    PlainSerializer(Address.__str__),
    WithJsonSchema(_LISTEN_ADDRESS),
]
"""`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`; port 0 picks a free one."""
TargetAddress = Annotated[
    Address,
    PlainValidator(read_target),
    PlainSerializer(Address.__str__),
    WithJsonSchema(_TARGET_ADDRESS),
]
"""`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH` with a port that is not 0."""
Boolean = Annotated[bool, BeforeValidator(read_boolean)]
"""`true` or `false`."""
Count = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=0)]
"""A whole number, zero or more."""
PositiveCount = Annotated[Count, Field(ge=1)]
"""A whole number, one or more."""
Number = Annotated[float, BeforeValidator(_refuse_boolean), Field(allow_inf_nan=False)]
"""A finite number."""
HeaderName = Annotated[str, AfterValidator(_check_header_name), text_schema(_FIELD_NAME)]
"""A field name of RFC 9110 section 5.1."""
HeaderValue = Annotated[str, AfterValidator(_check_header_value), text_schema(_FIELD_VALUE)]
"""One line of visible ASCII."""
UrlPath = Annotated[str, AfterValidator(_check_path), text_schema(_PATH)]
"""The path of a URL, with or without a query."""
AdminUrl = Annotated[str, AfterValidator(_check_admin_url), text_schema(_ADMIN_URL)]
"""Where another process has its admin API: `http://HOST:PORT`."""
FileName = Annotated[str, AfterValidator(_check_file), WrapValidator(keep_reference)]
"""Path of a file; a relative one starts at the working directory. Messages show it by `shown`."""
ServerName = Annotated[
    str,
    AfterValidator(_check_server_name),
    text_schema(re.compile(rf"{_HOST.pattern}|[0-9A-Fa-f:.]+")),
]
"""The name in a certificate: of a host, or an IP address."""
DnsName = Annotated[str, AfterValidator(_check_dns_name), text_schema(_DNS_NAME, maxLength=253)]
"""A name to look up; with a dot at its end it is not completed with search domains."""
StatusCode = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=200, le=599)]
"""A final status code of HTTP."""
PortNumber = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=1, le=65535)]
"""A port to connect to."""
Network = Annotated[
    IpNetwork, PlainValidator(read_network), PlainSerializer(str), WithJsonSchema(_NETWORK)
]
"""`192.0.2.0/24`, `2001:db8::/32`, or a single address."""
Switch = Annotated[
    bool | Literal["auto"],
    PlainValidator(read_switch),
    WithJsonSchema({"enum": [True, False, "auto"]}),
]
"""`true`, `false` or `auto`."""
Proxy = Annotated[
    IpNetwork | str,
    PlainValidator(read_proxy),
    PlainSerializer(str),
    WithJsonSchema({"anyOf": [{"const": "unix"}, _NETWORK]}),
]
"""As `Network`, or `unix`."""
BackendName = Annotated[
    str,
    Field(max_length=253),
    AfterValidator(_check_name),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 253,
            "pattern": r"^(?!\.\.?$)[^/\s](?:[^/]*[^/\s])?$",
        }
    ),
]
"""A name for logs, metrics and the admin API; it stands in URLs, so no slash, `.` or `..`."""


def field_name(name: str | None) -> bytes:
    """The name of a header as it is compared with those of requests; empty for none."""
    return (name or "").lower().encode()


MAX_WORKERS: Final = 64
"""More than that many would share the backends' load too thinly to learn from it."""


def read_workers(value: object) -> Literal["auto"] | int:
    """Check and parse how many processes serve clients.

    Raises:
        ValueError: with a message that says what was expected.
    """
    if value == "auto":
        return "auto"
    # Text, too: it may come from a variable of the environment.
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:10])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_WORKERS:
        raise ValueError(f"expected auto, or a number from 1 to {MAX_WORKERS}, got {show(value)}")
    return value


Workers = Annotated[
    Literal["auto"] | int,
    PlainValidator(read_workers),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto"]},
                {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS},
            ]
        }
    ),
]
"""`auto` or a number of processes."""
