"""Heads: what is taken from them, what is added, and what is malformed (RFC 9113 8)."""

from __future__ import annotations

import pytest

from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.fields import Field, encode_field
from lb.wire.http2.frames import ErrorCode, Malformed
from lb.wire.http2.heads import (
    NO_LENGTH,
    NO_STATUS,
    RequestHead,
    ResponseHead,
    build_request,
    build_response,
    check_trailers,
    refused_request,
)

Pairs = list[tuple[bytes, bytes]]
PSEUDO: Pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C")]
REQUEST: Pairs = [*PSEUDO, (b":authority", b"lb:8001"), (b"te", b"trailers")]


def fields(pairs: Pairs) -> list[Field]:
    return [Field(n, v, encode_field(n, v), never_indexed=False) for n, v in pairs]


def request(*pairs: tuple[bytes, bytes]) -> RequestHead:
    return build_request(fields(list(pairs)), b"block")


def response(*pairs: tuple[bytes, bytes]) -> ResponseHead:
    return build_response(fields(list(pairs)), b"block")


def test_request_is_digested() -> None:
    head = request(
        *REQUEST,
        (b"content-type", b"application/grpc+proto"),
        (b"content-length", b"17"),
        (b"grpc-timeout", b"2S"),
        (b"x-request-id", b"r-1"),
        (b"x-any", b"1"),
        (b"x-any", b"2"),
    )
    facts = head.facts
    assert (facts.method, facts.path, facts.authority) == (b"POST", b"/a.B/C", b"lb:8001")
    assert (facts.is_grpc, facts.content_length, facts.timeout_s) == (True, 17, 2.0)
    assert (facts.request_id, facts.count, facts.cacheable) == (b"r-1", 11, True)
    assert head.block == b"block"
    assert facts.size == sum(field.size for field in fields(REQUEST)) + 91 + 6 * 32


def test_request_that_says_nothing_has_the_defaults() -> None:
    facts = request(*REQUEST).facts
    assert (facts.is_grpc, facts.content_length) == (False, NO_LENGTH)
    assert (facts.timeout_s, facts.unusable, facts.request_id) == (None, "", b"")


def test_te_is_added_where_the_client_left_it_out() -> None:
    assert request(*PSEUDO).block == b"block" + encode_field(b"te", b"trailers")


@pytest.mark.parametrize(
    "value", [b"", b"YWI", b"YWI=", b"YWI=,YWI=", b"YWI=, YWI", b"YWI====", b"+/+/"]
)
def test_binary_metadata_in_base64_is_usable(value: bytes) -> None:
    assert not request(*REQUEST, (b"x-bin", value)).facts.unusable


@pytest.mark.parametrize("value", [b"not!base64", b"-_-_", b"YW I", b"=YWI", b"\xff"])
def test_binary_metadata_that_is_not_base64_is_noted(value: bytes) -> None:
    assert "-bin is not base64" in request(*REQUEST, (b"x-bin", value)).facts.unusable
    assert not request(*REQUEST, (b"x-bind", value)).facts.unusable


@pytest.mark.parametrize(
    ("fields", "is_answer"),
    [
        ([(b":status", b"200"), (b"content-type", b"application/grpc+proto")], True),
        ([(b":status", b"200")], True),
        ([(b":status", b"200"), (b"content-type", b"text/html")], False),
        ([(b":status", b"200"), (b"content-type", b"application/grpcx")], False),
        ([(b":status", b"200"), (b"content-type", b"text/html"), (b"grpc-status", b"5")], True),
        ([(b":status", b"502"), (b"content-type", b"text/html")], True),
        ([(b":status", b"103")], False),
        ([(b"grpc-status", b"0")], False),
    ],
)
def test_what_begins_an_answer(fields: list[tuple[bytes, bytes]], is_answer: bool) -> None:
    assert response(*fields).is_answer is is_answer


def test_a_malformed_timeout_is_noted_and_not_an_error_of_the_stream() -> None:
    facts = request(*REQUEST, (b"grpc-timeout", b"soon")).facts
    assert (facts.timeout_s, facts.unusable) == (None, "malformed grpc-timeout")


@pytest.mark.parametrize(
    ("value", "is_grpc"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpcx", False),
        (b"application/json", False),
    ],
)
def test_content_type_tells_grpc(value: bytes, is_grpc: bool) -> None:
    assert request(*REQUEST, (b"content-type", value)).facts.is_grpc is is_grpc


@pytest.mark.parametrize("hosts", [[b"lb:8001"], [b"else.example"], [b"a", b"b"], [b"any thing"]])
def test_host_beside_an_authority_is_metadata(hosts: list[bytes]) -> None:
    head = request(*REQUEST, *((b"host", host) for host in hosts))
    assert (head.facts.authority, head.block) == (b"lb:8001", b"block")


def test_host_stands_for_an_authority_that_is_missing() -> None:
    assert request(*PSEUDO, (b"host", b"other")).facts.authority == b"other"


def test_a_path_may_hold_characters_above_ascii() -> None:
    path = "/ä€😀".encode()
    head = request(*PSEUDO[:2], (b":path", path))
    assert head.facts.path == b"/%C3%A4%E2%82%AC%F0%9F%98%80"
    assert encode_field(b":path", head.facts.path) in head.block


def test_white_space_around_a_value_goes_no_further() -> None:
    head = request(*REQUEST, (b"x-a", b" \tv w "), (b"content-length", b"7 "))
    more = [(b"te", b"trailers")] if not any(name == b"te" for name, _ in REQUEST) else []
    sent = [*REQUEST, (b"x-a", b"v w"), (b"content-length", b"7"), *more]
    assert head.block == b"".join(encode_field(*pair) for pair in sent)
    assert head.facts.content_length == 7


def test_white_space_around_values_of_an_answer_stays() -> None:
    answer = response((b":status", b"200"), (b"grpc-status", b"3"), (b"grpc-message", b"got [1]. "))
    assert (answer.block, answer.grpc_status) == (b"block", 3)
    assert answer.grpc_message == b"got [1]."


def test_a_malformed_request_of_grpc_says_what_is_wrong() -> None:
    pairs = [*REQUEST, (b"content-type", b"application/grpc"), (b"connection", b"close")]
    with pytest.raises(Malformed) as caught:
        request(*pairs)
    head = refused_request(fields(pairs), caught.value)
    facts = head.facts
    assert (facts.is_grpc, facts.method, facts.path) == (True, b"POST", b"/a.B/C")
    assert head.block == b""
    assert facts.fault == "connection belongs to HTTP/1.1 connections"
    assert facts.count == len(pairs)
    with pytest.raises(Malformed):
        refused_request(fields(REQUEST), caught.value)


@pytest.mark.parametrize(
    "pairs",
    [
        PSEUDO[1:],
        PSEUDO[:1] + PSEUDO[2:],
        PSEUDO[:2],
        [*REQUEST, PSEUDO[0]],
        [*PSEUDO, (b"a", b"b"), (b":authority", b"x")],
        [*REQUEST, (b":status", b"200")],
        [(b":status", b"200"), *REQUEST],
        [(b":protocol", b"websocket"), *REQUEST],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"transfer-encoding", b"chunked")],
        [*REQUEST, (b"Upper", b"case")],
        [*REQUEST, (b"a", b"b\r\nc: d")],
        [*PSEUDO, (b"te", b"gzip")],
        [*REQUEST, (b"te", b"trailers")],
        [*PSEUDO, (b"host", b"a b")],
        [*REQUEST, (b"content-length", b"-1")],
        [*REQUEST, (b"content-length", b"1_0")],
        [*REQUEST, (b"content-length", b"")],
        [*REQUEST, (b"content-length", b"1" * 20)],
        [*REQUEST, (b"content-length", b"1"), (b"content-length", b"1")],
        [(b":method", b"PO ST"), *REQUEST[1:]],
        [(b":method", b""), *REQUEST[1:]],
        [PSEUDO[0], (b":scheme", b"ftp"), PSEUDO[2]],
        [*PSEUDO[:2], (b":path", b"")],
        [*PSEUDO[:2], (b":path", b"a/b")],
        [*PSEUDO[:2], (b":path", b"/a b")],
        [*PSEUDO[:2], (b":path", b"/a#b")],
        [*PSEUDO[:2], (b":path", b"/\xc3")],
        [*PSEUDO[:2], (b":path", b"/\xc0\xae")],
        [*PSEUDO[:2], (b":path", b"/\xed\xa0\x80")],
        [*PSEUDO[:2], (b":path", b"*")],
        [*PSEUDO, (b":authority", b"a b")],
        [*PSEUDO, (b":authority", b"a/b")],
    ],
)
def test_malformed_request_is_refused(pairs: Pairs) -> None:
    """Missing, repeated, misplaced and foreign pseudo-fields; fields of connections; bad names
    and values; te, host and content-length that lie; bad method, scheme, path and authority."""
    with pytest.raises(Malformed) as caught:
        request(*pairs)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_asterisk_is_the_path_of_options_only() -> None:
    head = request((b":method", b"OPTIONS"), PSEUDO[1], (b":path", b"*"))
    assert head.facts.path == b"*"


def test_never_indexed_field_forbids_caching() -> None:
    secret = Field(b"authorization", b"x", b"", never_indexed=True)
    assert not build_request([*fields(REQUEST), secret], b"").facts.cacheable
    assert not build_response([*fields([(b":status", b"200")]), secret], b"").cacheable


@pytest.mark.parametrize(
    ("value", "status"),
    [(b"0", 0), (b"16", 16), (b"17", 2), (b"00", 2), (b"", 2), (b"-1", 2), (b"ok", 2)],
)
def test_trailers_carry_the_status(value: bytes, status: int) -> None:
    """A status that is none of the seventeen counts as UNKNOWN."""
    head = response((b"grpc-status", value), (b"grpc-message", b"x"))
    assert (head.status, head.grpc_status) == (0, GrpcStatus(status))


def test_response_is_digested() -> None:
    head = response((b":status", b"200"), (b"content-length", b"5"), (b"x", b"y"))
    assert (head.status, head.content_length, head.grpc_status) == (200, 5, NO_STATUS)
    assert (head.block, head.size) == (b"block", 42 + 47 + 34)


@pytest.mark.parametrize(
    "pairs",
    [
        [(b":status", b"20")],
        [(b":status", b"600")],
        [(b":status", b"099")],
        [(b":status", b"2 0")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b"a", b"b"), (b":status", b"200")],
        [(b":path", b"/")],
        [(b":status", b"200"), (b":other", b"")],
        [(b":status", b"200"), (b"connection", b"close")],
        [(b":status", b"200"), (b"content-length", b"+1")],
        [(b":status", b"200"), (b"a", b"\0")],
    ],
)
def test_malformed_response_is_refused(pairs: Pairs) -> None:
    """Bad, repeated and late status; pseudo-fields of requests; fields of connections."""
    with pytest.raises(Malformed) as caught:
        response(*pairs)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_trailers_of_a_request_have_a_size() -> None:
    assert check_trailers(fields([(b"checksum", b"ab")])) == 42


@pytest.mark.parametrize(
    "pair", [(b":path", b"/"), (b":status", b"200"), (b":x", b""), (b"upgrade", b"h2c")]
)
def test_trailers_of_a_request_have_no_pseudo_fields(pair: tuple[bytes, bytes]) -> None:
    """Nor fields of connections."""
    with pytest.raises(Malformed) as caught:
        check_trailers(fields([pair]))
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_what_another_balancer_says_of_the_call_is_noted_and_goes_no_further() -> None:
    pairs = [(b":status", b"200"), (b"grpc-status", b"14"), (b"grpc-message", b"no")]
    head = response(pairs[0], (b"triton-lb-not-run", b"no_backend"), *pairs[1:])
    assert head.not_run == b"no_backend"
    assert head.block == b"".join(field.raw for field in fields(pairs))
    assert response(*pairs).not_run == b""
