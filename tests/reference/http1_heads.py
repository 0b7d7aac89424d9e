"""Request and response heads read the slow and obvious way: one character, one line at a time.

`lb.wire.http1.request` and `response` must agree with this on what is legal and what it means.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNKED = -1
UNTIL_CLOSE = -2
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_METHOD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_DIGITS = b"0123456789"
_HEX = b"0123456789abcdefABCDEF"
_HOST = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.-_~!$&'()*+;="
_REQUEST_HOPS = (
    b"connection", b"expect", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings",
    b"proxy-connection", b"proxy-authenticate", b"proxy-authorization",
)  # fmt: skip
_RESPONSE_HOPS = (
    b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings", b"proxy-connection",
    b"transfer-encoding",
)  # fmt: skip
_STAY = (
    b"accept", b"accept-encoding", b"authorization", b"cache-control", b"content-encoding",
    b"content-length", b"content-type", b"cookie", b"endpoint-load-metrics",
    b"endpoint-load-metrics-format", b"forwarded", b"grpc-accept-encoding", b"grpc-encoding",
    b"grpc-timeout", b"host", b"inference-header-content-length", b"location", b"retry-after",
    b"set-cookie", b"traceparent", b"tracestate", b"transfer-encoding", b"true-client-ip",
    b"www-authenticate", b"x-amzn-sagemaker-target-model", b"x-api-key", b"x-client-ip",
    b"x-cluster-client-ip", b"x-forwarded-by", b"x-forwarded-client-cert", b"x-forwarded-for",
    b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-prefix", b"x-forwarded-proto",
    b"x-forwarded-server", b"x-forwarded-ssl", b"x-http-method", b"x-http-method-override",
    b"x-method-override", b"x-original-url", b"x-real-ip", b"x-request-id", b"x-rewrite-url",
)  # fmt: skip


class Illegal(Exception):
    """Not a head that may be relayed."""


@dataclass(frozen=True)
class Meaning:
    """What a head means: everything that the relay acts upon."""

    start: tuple[bytes, ...]
    length: int
    keep_alive: bool
    rebuilt: bytes


def _all_in(text: bytes, allowed: bytes) -> bool:
    return all(byte in allowed for byte in text)


def _lines(head: bytes) -> list[bytes]:
    """The lines of a head, without the empty one."""
    lines = []
    line = b""
    at = 0
    while True:
        if at >= len(head):
            raise Illegal("no empty line")
        if head[at : at + 2] == b"\r\n":
            at += 2
            if not line:
                break
            lines.append(line)
            line = b""
            continue
        byte = head[at]
        if byte != 9 and (byte < 32 or byte == 127):
            raise Illegal("control character")
        line += bytes((byte,))
        at += 1
    if at != len(head):
        raise Illegal("more than a head")
    return lines


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """Lower-case name, value without white space around it, and the line."""
    fields = []
    for line in lines:
        if b":" not in line:
            raise Illegal("no colon")
        at = line.index(b":")
        name, value = line[:at], line[at + 1 :]
        if not name or not _all_in(name, _TOKEN):
            raise Illegal("name")
        while value[:1] in (b" ", b"\t"):
            value = value[1:]
        while value[-1:] in (b" ", b"\t"):
            value = value[:-1]
        fields.append((name.lower(), value, line))
    if len(fields) > 100:
        raise Illegal("too many fields")
    return fields


def _length_of(fields: list[tuple[bytes, bytes, bytes]], *, is_http10: bool) -> int | None:
    """Announced length, CHUNKED, or None for no framing field."""
    lengths = [value for name, value, _ in fields if name == b"content-length"]
    codings = [value for name, value, _ in fields if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Illegal("framed twice")
    if lengths:
        if not (1 <= len(lengths[0]) <= 19) or not _all_in(lengths[0], _DIGITS):
            raise Illegal("length")
        if int(lengths[0]) >= 2**63:
            raise Illegal("length")
        return int(lengths[0])
    if codings:
        if is_http10 or codings[0].lower() != b"chunked":
            raise Illegal("coding")
        return CHUNKED
    return None


def _options(fields: list[tuple[bytes, bytes, bytes]]) -> list[bytes]:
    options = []
    for name, value, _ in fields:
        if name == b"connection":
            for option in value.split(b","):
                option = option.strip(b" \t")
                if option and not _all_in(option, _TOKEN):
                    raise Illegal("option")
                if option:
                    options.append(option.lower())
    return options


def _keeps(options: list[bytes], *, is_http10: bool) -> bool:
    if b"close" in options:
        return False
    return not is_http10 or b"keep-alive" in options


def _check_host(value: bytes) -> None:
    host, port = value, b""
    if value.startswith(b"["):
        end = value.find(b"]")
        inside = value[1:end]
        if end < 0 or not inside or not _all_in(inside, _HEX + b":."):
            raise Illegal("address")
        host, port = b"", value[end + 1 :]
        if port and not port.startswith(b":"):
            raise Illegal("address")
        port = port[1:]
    elif b":" in value:
        host, _, port = value.partition(b":")
    if not host and not value.startswith(b"["):
        raise Illegal("no host")
    if len(port) > 5 or not _all_in(port, _DIGITS):
        raise Illegal("port")
    at = 0
    while at < len(host):
        if host[at : at + 1] == b"%":
            if len(host[at + 1 : at + 3]) < 2 or not _all_in(host[at + 1 : at + 3], _HEX):
                raise Illegal("host")
            at += 3
        elif host[at] in _HOST:
            at += 1
        else:
            raise Illegal("host")


def _check_target(method: bytes, target: bytes) -> None:
    if target == b"*":
        if method != b"OPTIONS":
            raise Illegal("asterisk")
        return
    if not target.startswith(b"/") or any(
        byte <= 32 or byte == 127 or byte == ord("#") for byte in target
    ):
        raise Illegal("target")
    try:
        target.decode()
    except UnicodeDecodeError as error:
        raise Illegal("target") from error
    path = target.split(b"?")[0].lower()
    if b"%00" in path:
        raise Illegal("NUL")
    path = path.replace(b"%2f", b"/").replace(b"%5c", b"/").replace(b"\\", b"/")
    for segment in path.split(b"/")[1:]:
        if segment.replace(b"%2e", b".") in (b".", b".."):
            raise Illegal("dot segment")


def _check_json_length(fields: list[tuple[bytes, bytes, bytes]], length: int) -> None:
    values = [value for name, value, _ in fields if name == b"inference-header-content-length"]
    if not values:
        return
    if len(values) > 1 or not 1 <= len(values[0]) <= 10 or not _all_in(values[0], _DIGITS):
        raise Illegal("JSON length")
    compressed = any(
        name == b"content-encoding" and value.lower() not in (b"", b"identity")
        for name, value, _ in fields
    )
    if int(values[0]) > 2147483647:
        raise Illegal("JSON length")
    if length != CHUNKED and not compressed and int(values[0]) > length:
        raise Illegal("JSON length")


def _undisguised(fields: list[tuple[bytes, bytes, bytes]]) -> list[tuple[bytes, bytes, bytes]]:
    """Without the redirect, and without fields that stand for another one to some servers."""
    redirect = b"x-vertex-ai-triton-redirect"
    hyphened = [name for name in (*_STAY, *_REQUEST_HOPS, redirect) if b"-" in name]
    return [
        field
        for field in fields
        if field[0] != redirect
        and (b"_" not in field[0] or field[0].replace(b"_", b"-") not in hyphened)
    ]


def read_request(head: bytes) -> Meaning:
    """Read a request head."""
    lines = _lines(head)
    words = lines[0].split(b" ") if lines else []
    if len(words) != 3:
        raise Illegal("request line")
    method, target, version = words
    if not method or not _all_in(method, _METHOD):
        raise Illegal("request line")
    if version[:7] != b"HTTP/1." or len(version) != 8 or not _all_in(version[7:], _DIGITS):
        raise Illegal("version")
    is_http10 = version == b"HTTP/1.0"
    if method in (b"TRACE", b"CONNECT"):
        raise Illegal("method")
    _check_target(method, target)
    target = b"".join(bytes((byte,)) if byte < 128 else b"%%%02X" % byte for byte in target)
    if len(lines[0]) > 8192 or len(head) > 32768:
        raise Illegal("too large")
    fields = _fields(lines[1:])
    hosts = [value for name, value, _ in fields if name == b"host"]
    if len(hosts) > 1 or (not hosts and not is_http10):
        raise Illegal("hosts")
    for host in hosts:
        _check_host(host)
    for name, value, _ in fields:
        if name == b"expect" and value.lower() != b"100-continue" and not is_http10:
            raise Illegal("expectation")
    length = _length_of(fields, is_http10=is_http10)
    _check_json_length(fields, length or 0)
    options = _options(fields)
    rebuilt = [method + b" " + target + b" HTTP/1.1"]
    if not hosts:
        rebuilt.append(b"Host: localhost")
    rebuilt += _kept(_undisguised(fields), options, _REQUEST_HOPS, length)
    return Meaning(
        (method, target),
        length or 0,
        _keeps(options, is_http10=is_http10),
        b"".join(line + b"\r\n" for line in (*rebuilt, b"")),
    )


def _kept(
    fields: list[tuple[bytes, bytes, bytes]],
    options: list[bytes],
    hops: tuple[bytes, ...],
    length: int | None,
) -> list[bytes]:
    kept = []
    for name, value, line in fields:
        if name in hops or (name in options and name not in _STAY):
            continue
        if name == b"transfer-encoding":
            line = b"Transfer-Encoding: chunked"
        elif name == b"content-length" and line[15:] not in (
            b"%d" % int(value),
            b" %d" % int(value),
        ):
            line = b"Content-Length: %d" % int(value)
        kept.append(line)
    return kept


def read_response(head: bytes, *, to_head: bool) -> Meaning:
    """Read a response head; `rebuilt` is for an HTTP/1.1 client that stays."""
    lines = _lines(head)
    if not lines or lines[0][:9] not in (b"HTTP/1.0 ", b"HTTP/1.1 "):
        raise Illegal("status line")
    is_http10 = lines[0][:9] == b"HTTP/1.0 "
    code, reason = lines[0][9:12], lines[0][12:]
    if len(code) != 3 or not _all_in(code, _DIGITS) or code[0] == ord("0") or code == b"101":
        raise Illegal("status")
    if reason and not reason.startswith(b" "):
        raise Illegal("status")
    if len(lines[0]) > 8192 or len(head) > 32768:
        raise Illegal("too large")
    fields = _fields(lines[1:])
    length = _length_of(fields, is_http10=is_http10)
    options = _options(fields)
    keep_alive = _keeps(options, is_http10=is_http10)
    kept = _kept(fields, options, _RESPONSE_HOPS, length)
    status = int(code)
    if to_head or status in (204, 304) or status < 200:
        length = 0
        if status == 204 or status < 200:
            kept = [line for line in kept if not line.lower().startswith(b"content-length:")]
    elif length is None:
        length = UNTIL_CLOSE
        keep_alive = False
    if length < 0:
        kept.append(b"Transfer-Encoding: chunked")
    rebuilt = (b"HTTP/1.1 " + code + (reason or b" "), *kept, b"")
    return Meaning((code,), length, keep_alive, b"".join(line + b"\r\n" for line in rebuilt))
