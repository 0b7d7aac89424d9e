"""Cost of a head: nanoseconds to find it in the cache and to read it for the first time.

python -m benchmarks.bench_http1_heads
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import parse_request_head
from lb.wire.http1.response import parse_response_head
from tests.fakes.relay import head_lookups
from tests.reference import http1_heads as reference

ROUNDS = 7
CALLS = 20_000
LIMITS = HeadLimits()

SMALL = (
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"
    b"Content-Type: application/json\r\nContent-Length: 130\r\n\r\n"
)
MESH = (
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: triton.example.com\r\n"
    b"User-Agent: python-requests/2.31.0\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: 203\r\n"
    b"Content-Length: 332\r\nX-Request-Id: 0f5ab6a3-0d0f-4b2f-9a39-6c2be8b9dd2c\r\n"
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    b"X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\nX-Envoy-Attempt-Count: 1\r\n\r\n"
)
CURL = b"GET /v2/models/simple HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nInference-Header-Content-Length: 210\r\n"
    b"Content-Length: 338\r\n\r\n"
)


def cost(call: Callable[[], object]) -> float:
    """Nanoseconds per call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - started) / CALLS)
    return best


def known(head: bytes) -> Callable[[], object]:
    """Find a head by its bytes, as they are cut out of a read."""
    look_up, parse = head_lookups(LIMITS)
    parse(head)
    read = head + b"body"
    end = len(head)
    return lambda: look_up(read[:end])


def first_time(head: bytes) -> Callable[[], object]:
    """Find out all about a head that differs from all before it in one value."""
    _, parse = head_lookups(LIMITS)
    numbers = itertools.count()
    return lambda: parse(b"%bX: %08x\r\n\r\n" % (head[:-2], next(numbers)))


def main() -> None:
    rows: list[tuple[str, Callable[[], object]]] = []
    for name, head in (("small, 3 fields", SMALL), ("mesh, 12 fields", MESH), ("edited", CURL)):
        rows += [
            (f"request, {name}: known", known(head)),
            (f"request, {name}: parsed", lambda head=head: parse_request_head(head, LIMITS)),
            (f"request, {name}: first of its kind", first_time(head)),
            (f"request, {name}: reference", lambda head=head: reference.read_request(head)),
        ]
    rows += [
        ("response: parsed", lambda: parse_response_head(ANSWER, LIMITS, to_head=False)),
        ("response: reference", lambda: reference.read_response(ANSWER, to_head=False)),
    ]
    for name, call in rows:
        print(f"{name:45} {cost(call):10,.0f} ns")


if __name__ == "__main__":
    main()
