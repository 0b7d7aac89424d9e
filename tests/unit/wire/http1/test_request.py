"""Request heads: what is refused, what is rebuilt and how."""

from __future__ import annotations

import pytest

from lb.wire.http1.body import CHUNKED, make_decoder
from lb.wire.http1.collect import HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import RequestHead, parse_request_head
from tests.corpus import http1, payloads
from tests.corpus.http1_rows import Row

_LIMITS = HeadLimits()
_ROWS = [row for row in http1.ALL + payloads.ALL if not row.half_close and not row.of_relay]
"""What head and body alone decide about."""


def _parse(fields: bytes = b"Host: a\r\n", line: bytes = b"GET /v2 HTTP/1.1") -> RequestHead:
    return parse_request_head(line + b"\r\n" + fields + b"\r\n", _LIMITS)


def _status_of_first_message(wire: bytes, step: int) -> int:
    """Read one request as the server does; 200 when head and body are legal and complete."""
    collector = HeadCollector(_LIMITS, of_request=True)
    decoder = None
    try:
        for at in range(0, len(wire), step):
            data = wire[at : at + step]
            if decoder is None:
                head = collector.feed(data)
                if head is None:
                    continue
                request = parse_request_head(head, _LIMITS)
                decoder = make_decoder(request.length)
                data = collector.rest
            if not decoder.ended:
                decoder.decode(data, 0, [])
    except MessageError as error:
        return error.status
    return 200 if decoder is not None and decoder.ended else 0


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("row", _ROWS, ids=str)
def test_corpus_gets_its_answer_at_every_pace(row: Row, step: int) -> None:
    assert _status_of_first_message(row.wire, step) == row.status


def test_clean_head_is_its_own_rebuilt_form() -> None:
    head = b"POST /v2 HTTP/1.1\r\nhOSt: a:1\r\nContent-Length: 5\r\nX-Odd:  b\t\r\n\r\n"
    request = parse_request_head(head, _LIMITS)
    assert request.upstream is head
    assert (request.method, request.target, request.host) == (b"POST", b"/v2", b"a:1")
    assert request.length == 5
    assert request.keep_alive


def test_hop_by_hop_fields_go_and_others_stay_byte_for_byte() -> None:
    request = _parse(
        b"X-A: 1\r\nConnection: keep-alive, X-Mine\r\nKeep-Alive: timeout=5\r\nHost: a\r\n"
        b"TE: trailers\r\nx-MINE: gone\r\nTrailer: x\r\nUpgrade: h2c\r\nProxy-Connection: a\r\n"
        b"HTTP2-Settings: AAA\r\nProxy-Authorization: s\r\nx-b:2 \r\n"
    )
    assert request.upstream == b"GET /v2 HTTP/1.1\r\nX-A: 1\r\nHost: a\r\nx-b:2 \r\n\r\n"


def test_connection_cannot_nominate_what_says_whom_a_request_is_from() -> None:
    request = _parse(
        b"Host: a\r\nX-Forwarded-For: b\r\nContent-Length: 0\r\n"
        b"Connection: host, X-Forwarded-For, content-length\r\n"
    )
    assert request.upstream == (
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: b\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("version", "options", "keeps"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: a, CLOSE\r\n", False),
        (b"1.1", b"Connection: a\r\nConnection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_keep_alive_follows_version_and_connection(
    version: bytes, options: bytes, keeps: bool
) -> None:
    assert _parse(b"Host: a\r\n" + options, b"GET / HTTP/" + version).keep_alive is keeps


def test_http10_becomes_http11_with_a_host() -> None:
    request = _parse(b"", b"GET / HTTP/1.0")
    assert request.is_http10
    assert request.upstream == b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_framing_is_canonical() -> None:
    assert _parse(b"Host: a\r\nContent-Length: \t007 \r\n").upstream == (
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n"
    )
    chunked = _parse(b"Host: a\r\nTRANSFER-ENCODING:\tChunked \r\n")
    assert chunked.length == CHUNKED
    assert chunked.upstream == (
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def test_no_framing_means_no_body() -> None:
    assert _parse().length == 0


def test_expectation_is_noted_and_not_passed_on() -> None:
    request = _parse(b"Host: a\r\nExpect: 100-Continue\r\n")
    assert request.expects_continue
    assert b"Expect" not in request.upstream


def test_expectations_of_http10_are_ignored() -> None:
    assert not _parse(b"Expect: anything\r\n", b"GET / HTTP/1.0").expects_continue


def test_request_id_is_read_and_bounded() -> None:
    assert _parse(b"Host: a\r\nx-request-ID:  abc \r\n").request_id == b"abc"
    assert len(_parse(b"Host: a\r\nX-Request-Id: " + b"a" * 999 + b"\r\n").request_id) == 256


@pytest.mark.parametrize("value", [b"a", b"a-b_c.d~", b"[fe80::1]:1", b"a%2db:", b"1.2.3.4:65535"])
def test_valid_hosts_are_taken(value: bytes) -> None:
    assert _parse(b"Host: " + value + b"\r\n").host == value


@pytest.mark.parametrize(
    "value", [b"", b":1", b"a b", b"a,b", b"a%zz", b"[::1", b"a:b", b"a\\b", b"a:123456"]
)
def test_invalid_hosts_are_refused(value: bytes) -> None:
    with pytest.raises(MessageError, match="Host"):
        _parse(b"Host: " + value + b"\r\n")


@pytest.mark.parametrize(
    "target", [b"/.", b"/a/..", b"/%2e%2E/a", b"/a/%2e/b", b"/a%5C..%5cb", b"/a\\..\\b", b"/a%00"]
)
def test_dot_segments_are_refused_however_spelled(target: bytes) -> None:
    with pytest.raises(MessageError):
        _parse(line=b"GET " + target + b" HTTP/1.1")


@pytest.mark.parametrize(
    "target",
    [b"/.well-known", b"/a..b/c", b"/a.b/...", b"/a%2Fb", b"//", b'/a"<>\\^`{|}', b"/?/../"],
)
def test_other_targets_pass_unchanged(target: bytes) -> None:
    assert _parse(line=b"GET " + target + b" HTTP/1.1").target == target


def test_limits_are_exact() -> None:
    limits = HeadLimits(head_bytes=200, line_bytes=40, fields=2)
    line = b"GET /" + b"a" * 26 + b" HTTP/1.1"
    assert len(line) == 40
    parse_request_head(line + b"\r\nHost: a\r\nX: " + b"b" * 142 + b"\r\n\r\n", limits)
    for status, head in (
        (414, b"GET /a" + line[5:] + b"\r\nHost: a\r\n\r\n"),
        (431, line + b"\r\nHost: a\r\nX: " + b"b" * 143 + b"\r\n\r\n"),
        (431, b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nY: 2\r\n\r\n"),
    ):
        with pytest.raises(MessageError) as caught:
            parse_request_head(head, limits)
        assert caught.value.status == status
