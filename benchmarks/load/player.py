"""Load generator for mixed calls, and for a rate that does not depend on how fast answers come.

Run as a program; prints one JSON object. `mixed` keeps a number of calls under way, of both
protocols and many sizes, in an order that is the same for every proxy. `paced` starts calls at even
distances in time; the latency of one counts from when it was due, so that a proxy which makes the
load wait does not hide it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import select
import sys
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.load import payloads
from benchmarks.load.h2client import header_prefix
from benchmarks.load.links import Call, Http1Link, Http2Link, Link, LoadError, tls_context
from benchmarks.load.tally import tally
from benchmarks.load.timer import Timer

_IDLE_LIMIT_S = 10.0
_LATE_LIMIT_S = 5.0
_MIXED_ORDER = 1000
_MIXED_SIZES = ((200, 80), (16 * 1024, 14), (payloads.IMAGE_BYTES, 5), (payloads.LARGE_BYTES, 1))
"""Bytes of a request, and how many of 100 requests have them."""


def http_call(model: str, body: bytes, json_head: int = 0) -> Call:
    """An infer request of HTTP/1.1; `json_head`: length of the JSON before a binary tensor."""
    binary = f"Inference-Header-Content-Length: {json_head}\r\n" if json_head else ""
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: triton.example:8000\r\n{binary}"
        f"Content-Type: application/{'octet-stream' if json_head else 'json'}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return Call(False, head.encode(), body)


def grpc_call(body: bytes) -> Call:
    """A unary infer call."""
    return Call(True, header_prefix(payloads.INFER_PATH), body)


def mixed_calls() -> list[Call]:
    """70 % gRPC, 30 % HTTP/1.1, each with the same sizes, in an order that never changes."""
    order: list[Call] = []
    for size, share in _MIXED_SIZES:
        if size <= payloads.SMALL_GRPC_BYTES:
            http = http_call("simple", payloads.small_http_request())
            grpc = grpc_call(payloads.small_grpc_request())
        else:
            http = http_call("image", *payloads.tensor_http_request(size))
            grpc = grpc_call(payloads.tensor_grpc_request(size))
        count = share * _MIXED_ORDER // 100
        order += [grpc] * (count * 7 // 10) + [http] * (count - count * 7 // 10)
    random.Random(5).shuffle(order)
    return order


class Player:
    """Plays calls, in order and again from the start, over links that are open already."""

    def __init__(self, calls: Sequence[Call], requests: int) -> None:
        self._calls = calls
        self._requests = requests
        self._sent = 0
        self._begun = 0.0
        self._errors = 0
        self._latencies: list[float] = []
        self._poll = select.epoll()
        self._links: dict[int, Link] = {}
        self._stuck: set[int] = set()
        self._free: dict[bool, deque[Link]] = {False: deque(), True: deque()}

    def open_http(self, port: int, connections: int, *, tls: bool) -> None:
        """Connect for HTTP/1.1: one call at a time on each connection."""
        context = tls_context("http/1.1") if tls else None
        for _ in range(connections):
            link = Http1Link(port, context, self._answered)
            self._watch(link)
            self._free[False].append(link)

    def open_grpc(self, port: int, connections: int, streams: int, *, tls: bool) -> None:
        """Connect for gRPC: `streams` calls at a time on each connection.

        Raises:
            LoadError: the far side did not open a connection with its settings.
        """
        context = tls_context("h2") if tls else None
        links = [Http2Link(port, context, self._answered) for _ in range(connections)]
        for link in links:
            self._watch(link)
        while not all(link.is_open for link in links):
            self._turn()
        for _ in range(streams):
            self._free[True].extend(links)

    def play_closed(self, at_once: int) -> dict[str, float]:
        """Keep `at_once` calls under way until all were answered."""
        self._begun = time.perf_counter()
        while len(self._latencies) + self._errors < self._requests:
            room = at_once - (self._sent - len(self._latencies) - self._errors)
            now = time.perf_counter()
            while room > 0 and self._sent < self._requests and self._start_next(now):
                room -= 1
            self._turn()
        return self._result()

    def play_paced(self, rate: float) -> dict[str, float]:
        """Start `rate` calls a second, whatever the answers do.

        Raises:
            LoadError: the far side fell so far behind that it cannot hold the rate.
        """
        timer = Timer()
        self._poll.register(timer.fd, select.EPOLLIN)
        self._begun = time.perf_counter()
        latest = self._requests / rate + _LATE_LIMIT_S
        timer.set_rate(rate)
        while len(self._latencies) + self._errors < self._requests:
            passed = time.perf_counter() - self._begun
            if passed > latest:
                raise LoadError(f"{rate:,.0f} requests per second are not kept up with")
            due = min(self._requests, int(passed * rate))
            while self._sent < due and self._start_next(self._begun + (self._sent + 1) / rate):
                pass
            self._turn()
        timer.close()
        return self._result()

    def _start_next(self, due: float) -> bool:
        """Send the next call if a link is free for it."""
        call = self._calls[self._sent % len(self._calls)]
        free = self._free[call.is_grpc]
        if not free:
            return False
        link = free.popleft()
        self._sent += 1
        link.ask(call, due)
        if link.is_stuck:
            self._watch_stuck(link)
        return True

    def _answered(self, link: Link, due: float, is_good: bool, now: float) -> None:
        if is_good:
            self._latencies.append((now - due) * 1e6)
        else:
            self._errors += 1
        self._free[isinstance(link, Http2Link)].append(link)

    def _turn(self) -> None:
        events = self._poll.poll(_IDLE_LIMIT_S)
        if not events:
            raise LoadError(f"no byte for {_IDLE_LIMIT_S:g} s")
        for fd, mask in events:
            link = self._links.get(fd)
            if link is None:
                os.read(fd, 8)  # the timer, which goes on only once it was read
                continue
            if mask & select.EPOLLOUT:
                link.flush()
            if mask & ~select.EPOLLOUT:
                link.receive()
            if self._stuck or link.is_stuck:
                self._watch_stuck(link)

    def _watch(self, link: Link) -> None:
        self._poll.register(link.fd, select.EPOLLIN)
        self._links[link.fd] = link
        self._watch_stuck(link)

    def _watch_stuck(self, link: Link) -> None:
        if link.is_stuck and link.fd not in self._stuck:
            self._stuck.add(link.fd)
            self._poll.modify(link.fd, select.EPOLLIN | select.EPOLLOUT)
        elif not link.is_stuck and link.fd in self._stuck:
            self._stuck.remove(link.fd)
            self._poll.modify(link.fd, select.EPOLLIN)

    def _result(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._begun
        for link in self._links.values():
            link.socket.close()
        return tally(self._latencies, seconds, self._errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("mixed", "paced"))
    parser.add_argument("--http", type=int, help="port, for calls of HTTP/1.1")
    parser.add_argument("--grpc", type=int, help="port, for calls of gRPC")
    for name in ("requests", "connections", "streams"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, help="calls a second, of kind paced")
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    if given.kind == "mixed":
        calls = mixed_calls()
    elif given.grpc:
        calls = [grpc_call(payloads.small_grpc_request())]
    else:
        calls = [http_call("simple", payloads.small_http_request())]
    gc.disable()  # its pauses would be counted as the proxy's
    player = Player(calls, given.requests)
    at_once = given.connections * given.streams
    try:
        if given.grpc:
            player.open_grpc(given.grpc, given.connections, given.streams, tls=given.tls)
        if given.http:
            player.open_http(given.http, at_once, tls=given.tls)
        if given.kind == "mixed":
            result = player.play_closed(at_once)
        else:
            result = player.play_paced(given.rate)
    except (LoadError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
