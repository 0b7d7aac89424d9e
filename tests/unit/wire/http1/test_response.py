"""Response heads: framing by RFC 9112 6.3, what is refused, what the client gets."""

from __future__ import annotations

import pytest

from lb.wire.http1.body import CHUNKED, UNTIL_CLOSE
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.response import ResponseHead, parse_response_head

_LIMITS = HeadLimits()


def _parse(
    fields: bytes = b"", line: bytes = b"HTTP/1.1 200 OK", *, to_head: bool = False
) -> ResponseHead:
    return parse_response_head(line + b"\r\n" + fields + b"\r\n", _LIMITS, to_head=to_head)


def test_clean_head_is_its_own_rebuilt_form() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nX-A:b\r\n\r\n"
    response = parse_response_head(head, _LIMITS, to_head=False)
    assert response.is_clean
    assert response.plain is head
    assert response.downstream(to_http10=False, keep_alive=True) is head
    assert (response.status, response.length, response.keep_alive) == (200, 3, True)


@pytest.mark.parametrize(
    ("line", "fields", "to_head", "length", "keeps"),
    [
        (b"HTTP/1.1 200 OK", b"Content-Length: 5\r\n", False, 5, True),
        (b"HTTP/1.1 200 OK", b"Content-Length: 5\r\nConnection: close\r\n", False, 5, False),
        (b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked\r\n", False, CHUNKED, True),
        (b"HTTP/1.1 200 OK", b"", False, UNTIL_CLOSE, False),
        (b"HTTP/1.0 200 OK", b"", False, UNTIL_CLOSE, False),
        (b"HTTP/1.0 200 OK", b"Content-Length: 5\r\n", False, 5, False),
        (b"HTTP/1.0 200 OK", b"Content-Length: 5\r\nConnection: keep-alive\r\n", False, 5, True),
        (b"HTTP/1.1 200 OK", b"Content-Length: 5\r\n", True, 0, True),
        (b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked\r\n", True, 0, True),
        (b"HTTP/1.1 204 No Content", b"", False, 0, True),
        (b"HTTP/1.1 304 Not Modified", b"Content-Length: 5\r\n", False, 0, True),
        (b"HTTP/1.1 103 Early Hints", b"Link: </a>\r\n", False, 0, True),
    ],
)
def test_framing_follows_status_method_and_fields(
    line: bytes, fields: bytes, to_head: bool, length: int, keeps: bool
) -> None:
    response = _parse(fields, line, to_head=to_head)
    assert (response.length, response.keep_alive) == (length, keeps)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNoColon\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 +20 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\n\r\n",
        b"HTTP/1.1  OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 65536 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 101 + b"\r\n",
    ],
    ids=lambda head: repr(head[:60]),
)
def test_broken_heads_are_refused(head: bytes) -> None:
    with pytest.raises(MessageError):
        parse_response_head(head, _LIMITS, to_head=False)


def test_hop_by_hop_fields_go_and_others_stay_byte_for_byte() -> None:
    response = _parse(
        b"X-A:1\r\nConnection: keep-alive, x-mine\r\nKeep-Alive: timeout=5\r\nX-Mine: gone\r\n"
        b"Upgrade: h2\r\nContent-Length: 03\r\nDate: now\r\n"
    )
    assert response.plain == (b"HTTP/1.1 200 OK\r\nX-A:1\r\nContent-Length: 3\r\nDate: now\r\n\r\n")


def test_chunks_are_announced_by_us() -> None:
    response = _parse(b"Transfer-Encoding: Chunked\r\nX: y\r\n")
    assert response.plain == (b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert response.downstream(to_http10=True, keep_alive=False) == (
        b"HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n"
    )


def test_body_until_close_is_chunked_to_http11() -> None:
    response = _parse(b"X: y\r\n")
    assert response.downstream(to_http10=False, keep_alive=True) == (
        b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert response.downstream(to_http10=False, keep_alive=False) == (
        b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )


def test_connection_option_says_what_will_happen() -> None:
    response = _parse(b"Content-Length: 0\r\n")
    assert response.downstream(to_http10=False, keep_alive=False) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    assert response.downstream(to_http10=True, keep_alive=True) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    )


def test_no_content_loses_its_length_and_not_modified_keeps_it() -> None:
    assert _parse(b"Content-Length: 5\r\n", b"HTTP/1.1 204 No Content").plain == (
        b"HTTP/1.1 204 No Content\r\n\r\n"
    )
    assert b"Content-Length: 5" in _parse(b"Content-Length: 5\r\n", b"HTTP/1.1 304 N").plain


def test_version_and_missing_reason_are_repaired() -> None:
    assert _parse(b"Content-Length: 0\r\n", b"HTTP/1.0 299").plain == (
        b"HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n"
    )


def test_interim_responses_are_told_apart() -> None:
    assert _parse(line=b"HTTP/1.1 103 Early Hints").is_interim
    assert not _parse().is_interim


def test_what_another_balancer_says_of_the_request_is_noted_and_goes_no_further() -> None:
    head = b"HTTP/1.1 503 Service Unavailable\r\nTriton-LB-Not-Run:  no_backend \r\nA: b\r\n"
    response = parse_response_head(head + b"Content-Length: 2\r\n\r\n", _LIMITS, to_head=False)
    assert response.not_run == b"no_backend"
    shown = b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\nContent-Length: 2\r\n\r\n"
    assert response.plain == shown
    assert not response.is_clean
