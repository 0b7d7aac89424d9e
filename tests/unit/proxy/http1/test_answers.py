"""Answers of our own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.backend import AppProtocol, Backend, BackendKind
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.proxy.http1.answers import Answer, error, own, refusal
from lb.proxy.http1.heads import HeadReader, RequestPlan
from lb.wire.http1.limits import HeadLimits
from tests.fakes.backends import make_backends
from tests.fakes.relay import snapshot_of


def _plan(path: bytes) -> RequestPlan:
    return HeadReader(HeadLimits()).request(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")


def test_error_has_the_shape_of_tritons() -> None:
    answer = error(400, Reason.BAD_REQUEST, 'say "please"')
    assert answer.encode(keep_alive=True, is_http10=False, is_head=False) == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 27\r\nContent-Type: application/json\r\n\r\n"
        b'{"error": "say \\"please\\""}'
    )


@pytest.mark.parametrize(
    ("path", "count", "status", "body"),
    [
        (b"/v2/health/live", 0, 200, b""),
        (b"/v2/health/live", 1, 200, b'{"live":true}'),
        (b"/v2/health/ready", 1, 200, b'{"ready":true}'),
    ],
)
def test_health_is_put_as_the_backends_would(
    path: bytes, count: int, status: int, body: bytes
) -> None:
    backends = [
        Backend(replace(backend.spec, kind=BackendKind.KSERVE))
        for backend in make_backends(*range(count))
    ]
    answer = own(_plan(path), snapshot_of(backends), draining=False)
    assert (answer.status, answer.body) == (status, body)


def test_a_pool_that_is_not_ready_says_so_in_words() -> None:
    (backend,) = make_backends(0)
    kserve = Backend(replace(backend.spec, kind=BackendKind.KSERVE))
    snapshot = replace(snapshot_of(()), backends=(kserve,))
    answer = own(_plan(b"/v2/health/ready"), snapshot, draining=False)
    assert (answer.status, answer.body) == (400, b'{"ready":false}')


def test_connection_option_is_announced() -> None:
    answer = Answer(200)
    assert answer.encode(keep_alive=False, is_http10=False, is_head=False) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert b"Connection: keep-alive" in answer.encode(
        keep_alive=True, is_http10=True, is_head=False
    )


@pytest.mark.parametrize(
    ("status", "reason", "line"),
    [
        (503, Reason.NO_BACKEND, b"Retry-After: 1"),
        (503, Reason.BACKENDS_FULL, b"Retry-After: 1"),
        (503, Reason.MEMORY, b"Retry-After: 1"),
        (405, Reason.BAD_REQUEST, b"Allow: GET, "),
    ],
)
def test_fields_that_belong_to_a_status(status: int, reason: Reason, line: bytes) -> None:
    encoded = error(status, reason, "x").encode(keep_alive=True, is_http10=False, is_head=False)
    assert line in encoded
    assert b"Retry-After" not in error(502, Reason.UPSTREAM_LOST, "x").encode(
        keep_alive=True, is_http10=False, is_head=False
    )


def test_health_is_what_a_triton_would_say() -> None:
    some, none = snapshot_of(make_backends(0)), snapshot_of([])
    live, ready = _plan(b"/v2/health/live"), _plan(b"/v2/health/ready")
    for draining in (False, True):
        assert own(live, none, draining=draining).status == 200
    assert own(ready, some, draining=False).encode(
        keep_alive=True, is_http10=False, is_head=False
    ) == (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n")
    assert own(ready, none, draining=False).status == 400
    exiting = own(ready, some, draining=True)
    assert (exiting.status, exiting.body) == (503, b'{"error": "Server exiting"}')


def test_options_of_the_server_are_ours() -> None:
    plan = HeadReader(HeadLimits()).request(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
    encoded = own(plan, snapshot_of([]), draining=True).encode(
        keep_alive=True, is_http10=False, is_head=False
    )
    assert encoded.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")
    assert b"\r\nAllow: GET, HEAD, POST" in encoded


def test_faulty_request_is_refused() -> None:
    plan = _plan(b"/v2/models/a%2fb")
    assert plan.route.is_ours
    refused = own(plan, snapshot_of([]), draining=False)
    assert (refused.status, refused.reason) == (400, Reason.BAD_REQUEST)
    assert not _plan(b"/v2/models/a").route.is_ours


@pytest.mark.parametrize(
    ("refused", "status", "field"),
    [
        (RequestRefused(Reason.UNAUTHENTICATED, "no"), 401, b"WWW-Authenticate: Bearer"),
        (RequestRefused(Reason.CONTROL_REFUSED, "no"), 403, b"Content-Length: 15"),
        (RequestRefused(Reason.RATE_LIMITED, "no", retry_after_s=2.1), 429, b"Retry-After: 3"),
        (RequestRefused(Reason.RATE_LIMITED, "no", retry_after_s=0.1), 429, b"Retry-After: 1"),
        (RequestRefused(Reason.CONCURRENCY_LIMITED, "no"), 429, b"Retry-After: 1"),
    ],
)
def test_a_refusal_says_what_to_do(refused: RequestRefused, status: int, field: bytes) -> None:
    answer = refusal(refused)
    assert (answer.status, answer.reason, answer.body) == (
        status,
        refused.reason,
        b'{"error": "no"}',
    )
    message = answer.encode(keep_alive=True, is_http10=False, is_head=False)
    assert b"\r\n" + field + b"\r\n" in message


def test_what_backends_say_is_written_as_a_triton_writes_it() -> None:
    answer = Answer(405, b'{"error":"no"}', content_type=b"text/plain", is_relayed=True)
    assert answer.encode(keep_alive=True, is_http10=False, is_head=False) == (
        b"HTTP/1.1 405 Not Allowed\r\nContent-Length: 14\r\nContent-Type: text/plain\r\n\r\n"
        b'{"error":"no"}'
    )


def test_a_balancer_is_told_through_whom_we_are_ready() -> None:
    ours, other, server = (b"triton-lb-%016x" % number for number in range(3))
    head = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\ncdn-loop: %b\r\n\r\n"
    reader = HeadReader(HeadLimits(), identity=ours)
    (backend,) = make_backends(0)
    backend.port(AppProtocol.HTTP).ready_through = (server,)
    snapshot = snapshot_of([backend])
    answer = own(reader.request(head % other), snapshot, draining=False, identity=ours)
    assert answer.encode(keep_alive=True, is_http10=False, is_head=False) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n"
        b"triton-lb-ready-through: %b, %b\r\n\r\n" % (ours, server)
    )
    answer = own(reader.request(head % server), snapshot, draining=False, identity=ours)
    assert (answer.status, answer.reason) == (508, Reason.LOOP)
    assert server in answer.body
