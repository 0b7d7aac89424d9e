"""What heads mean, and the memory of it."""

from __future__ import annotations

import pytest

from lb.access.gate import Gate, GateRules
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.proxy.http1.heads import UNREADABLE, UNREADABLE_HEAD, HeadReader
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits

_INFER = b"POST /v2/models/m/infer?key=secret HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def test_plan_knows_operation_model_and_path_without_query() -> None:
    plan = HeadReader(HeadLimits()).request(_INFER)
    assert (plan.operation.name, plan.model, plan.path) == (
        "ModelInfer",
        b"m",
        b"/v2/models/m/infer",
    )
    assert plan.is_plain
    assert plan.is_inference


@pytest.mark.parametrize(
    "head",
    [
        b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
        b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2/models/a%2fb/ready HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v2/systemsharedmemory/region/r/register HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_anything_special_is_not_plain(head: bytes) -> None:
    plan = HeadReader(HeadLimits()).request(head)
    assert not plan.is_plain
    assert not plan.is_inference


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    reader = HeadReader(HeadLimits())
    plan = reader.request(_INFER)
    for number in range(5000):
        head = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number
        reader.request(head)
        if number % 500 == 0:
            assert reader.request(_INFER) is plan
    assert reader.known_request(b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\n") is None
    long = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 5000 + b"\r\n\r\n"
    reader.request(long)
    assert reader.known_request(long) is None


def test_answers_to_head_and_interim_answers_are_not_remembered() -> None:
    reader = HeadReader(HeadLimits())
    assert reader.response(_OK, to_head=True).length == 0
    assert reader.known_response(_OK) is None
    assert reader.response(_OK, to_head=False).length == 2
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    reader.response(interim, to_head=False)
    assert reader.known_response(interim) is None


def test_heads_of_errors_never_take_the_short_way() -> None:
    reader = HeadReader(HeadLimits())
    error = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n"
    response = reader.response(error, to_head=False)
    assert reader.known_response(error) is None
    assert reader.response(error, to_head=False) is response


def test_broken_heads_are_refused_every_time() -> None:
    reader = HeadReader(HeadLimits())
    for _ in range(2):
        with pytest.raises(MessageError):
            reader.request(b"GET / HTTP/1.1\r\n\r\n")
        assert reader.plan(b"GET / HTTP/1.1\r\n\r\n") is None
        with pytest.raises(MessageError):
            reader.response(b"HTTP/1.1 101 No\r\n\r\n", to_head=False)


def test_refusals_of_head_requests_are_known_as_such() -> None:
    reader = HeadReader(HeadLimits())
    for method in (b"HEAD", b"GET", b"HEADS"):
        with pytest.raises(MessageError) as caught:
            reader.request(method + b" / HTTP/1.1\r\n\r\n")
        assert caught.value.to_head is (method == b"HEAD")
    assert UNREADABLE_HEAD.is_head
    assert not UNREADABLE.is_head


# Access


def head_of(method: bytes, target: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join((method + b" " + target + b" HTTP/1.1", b"Host: a", *fields, b"", b""))


def test_nothing_is_asked_of_an_inference_by_default() -> None:
    reader = HeadReader(HeadLimits())
    assert reader.request(_INFER).credentials is None
    assert reader.request(head_of(b"GET", b"/v2/logging")).credentials is None


@pytest.mark.parametrize(
    "head",
    [
        head_of(b"POST", b"/v2/repository/models/m/load"),
        head_of(b"POST", b"//V2/repository/models/m/%6coad/?x=1"),
        head_of(b"GET", b"/v2/logging", b"X-HTTP-Method-Override: POST"),
        head_of(b"GET", b"/v2/logging", b"x-http-method:POST"),
    ],
)
def test_control_is_asked_however_it_is_spelled(head: bytes) -> None:
    plan = HeadReader(HeadLimits()).request(head)
    assert plan.credentials is not None
    assert plan.credentials.is_control
    assert not plan.is_plain


def test_a_token_is_read_from_its_field_alone() -> None:
    secret = b"0123456789abcdef"
    book = TokenBook([Token("key", digest_of(secret), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=True, header=b"x-api-key"), book)
    reader = HeadReader(HeadLimits(), gate=gate)
    for field, name in (
        (b"X-Api-Key: " + secret, "key"),
        (b"x-api-key:" + secret + b" ", "key"),
        (b"X-Api-Keys: " + secret, None),
        (b"X: y\r\nX-Api-Key: wrong", None),
    ):
        credentials = reader.request(head_of(b"POST", b"/v2/models/m/infer", field)).credentials
        assert credentials is not None
        token = gate.identify(credentials)
        assert (token.name if token else None) == name


@pytest.mark.parametrize(
    ("fields", "json_size", "is_compressed"),
    [
        (b"", -1, False),
        (b"Inference-Header-Content-Length: 130\r\n", 130, False),
        (b"inference-header-content-length:130\r\n", 130, False),
        (b"Inference-Header-Content-Length: 0\r\n", 0, False),
        (b"X-Inference-Header-Content-Length: 5\r\n", -1, False),
        (b"Content-Encoding: GZIP\r\n", -1, True),
        (b"content-encoding:deflate\r\n", -1, True),
        (b"Content-Encoding: br\r\nContent-Encoding: gzip\r\n", -1, False),
        (b"Content-Encoding: identity\r\n", -1, False),
    ],
)
def test_how_the_body_of_an_inference_is_made_up(
    fields: bytes, json_size: int, is_compressed: bool
) -> None:
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + fields + b"Content-Length: 200\r\n\r\n"
    )
    plan = HeadReader(HeadLimits()).request(head)
    assert (plan.json_size, plan.is_compressed) == (json_size, is_compressed)


_OURS, _OTHER = (b"triton-lb-%016x" % number for number in (1, 2))


def test_a_hop_marker_of_ours_ends_the_head_for_the_backend() -> None:
    reader = HeadReader(HeadLimits(), identity=_OURS)
    plan = reader.request(_INFER)
    assert plan.upstream == _INFER[:-2] + b"cdn-loop: " + _OURS + b"\r\n\r\n"
    assert (plan.hops, plan.loop, plan.is_plain) == ((), "", True)


def test_markers_of_others_are_passed_on() -> None:
    field = b"CDN-Loop: a.cdn, " + _OTHER + b"\r\n"
    plan = HeadReader(HeadLimits(), identity=_OURS).request(_INFER[:-2] + field + b"\r\n")
    assert field in plan.upstream
    assert (plan.hops, plan.loop, plan.is_plain) == ((_OTHER,), "", True)


def test_a_head_with_our_marker_is_a_loop_however_it_is_hidden() -> None:
    for fields in (
        b"cdn-loop: " + _OURS + b"\r\n",
        b"CDN-LOOP: a\r\nCDN-Loop:" + _OTHER + b"\r\nx: y\r\ncdn-loop: b ," + _OURS + b"\r\n",
        b"Connection: cdn-loop\r\nCDN-Loop: " + _OURS + b"\r\n",
    ):
        plan = HeadReader(HeadLimits(), identity=_OURS).request(_INFER[:-2] + fields + b"\r\n")
        assert plan.loop.startswith("loop detected: ")
        assert not plan.is_plain


def test_without_an_identity_nothing_is_marked() -> None:
    head = _INFER[:-2] + b"cdn-loop: " + _OURS + b"\r\n\r\n"
    plan = HeadReader(HeadLimits()).request(head)
    assert (plan.upstream, plan.loop) == (head, "")
