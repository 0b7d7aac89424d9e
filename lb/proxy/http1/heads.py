"""What heads mean, remembered: equal bytes mean equal requests, on every connection.

Clients repeat themselves, so nearly every head is found by its bytes in one dictionary look-up.
"""

from __future__ import annotations

from typing import Final

from lb.domain.operation import Operation
from lb.kserve.operations import UNKNOWN, Route, http_route
from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import CRLF
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import RequestHead, parse_request_head
from lb.wire.http1.response import ResponseHead, parse_response_head
from lb.wire.http2.blocks import HeadCache

_INFER: Final = "ModelInfer"


class RequestPlan:
    """A request head, and what we do with such a request."""

    __slots__ = (
        "expects_continue", "host", "is_clean", "is_head", "is_http10", "is_plain",
        "is_unstoppable", "keep_alive", "length", "method", "model", "operation", "path",
        "request_id", "route", "upstream",
    )  # fmt: skip

    def __init__(self, request: RequestHead, route: Route, *, fits: bool) -> None:
        self.method = request.method
        self.path = request.target.partition(b"?")[0]
        """For the log. Queries may hold secrets."""
        self.model = route.model
        self.operation: Operation = route.operation
        self.route = route
        self.request_id = request.request_id
        self.host = request.host or b""
        self.length = request.length
        self.upstream = request.upstream
        """The head for the backend."""
        self.is_clean = request.is_clean
        """`upstream` is what the client sent."""
        self.is_head = request.method == b"HEAD"
        self.is_http10 = request.is_http10
        self.keep_alive = request.keep_alive
        self.expects_continue = request.expects_continue
        self.is_plain = (
            request.keep_alive
            and not request.is_http10
            and not request.expects_continue
            and not self.is_head
            and request.length >= 0
            and fits
            and not route.is_ours
            and not route.is_registration
        )
        """Nothing about it needs a second look."""
        self.is_unstoppable = route.operation.name == _INFER
        """A Triton computes it to the end even when its client leaves."""


class HeadReader:
    """Reads heads through the caches that all connections share."""

    __slots__ = (
        "_body_size", "_errors", "_limits", "_requests", "_responses", "_routes",
        "known_request", "known_response",
    )  # fmt: skip

    def __init__(self, limits: HeadLimits, *, body_size: int = 0) -> None:
        self._limits = limits
        self._body_size = body_size
        """Longest body; 0 is no limit."""
        self._requests: HeadCache[RequestPlan] = HeadCache()
        self._responses: HeadCache[ResponseHead] = HeadCache()
        self._errors: HeadCache[ResponseHead] = HeadCache()
        """Heads of errors, whose bodies need a second look."""
        self._routes: HeadCache[Route] = HeadCache()
        """By request line: heads with a field that differs each time repeat at least that."""
        self.known_request = self._requests.get
        """Look up the request heads used last; hot."""
        self.known_response = self._responses.get
        """Look up the response heads used last, none of which is an error, interim or answers
        HEAD; hot."""

    def request(self, head: bytes) -> RequestPlan:
        """What a request head means.

        Raises:
            MessageError: it must not be relayed.
        """
        plan = self._requests.get(head) or self._requests.revive(head)
        if plan is None:
            request = parse_request_head(head, self._limits)
            line = head[: head.index(CRLF)]
            route = self._routes.get(line) or self._routes.revive(line)
            if route is None:
                route = http_route(request.method, request.target)
                self._routes.put(line, route)
            fits = not self._body_size or request.length <= self._body_size
            plan = RequestPlan(request, route, fits=fits)
            self._requests.put(head, plan)
        return plan

    def plan(self, head: bytes) -> RequestPlan | None:
        """As `request`; None where that raises."""
        try:
            return self.request(head)
        except MessageError:
            return None

    def response(self, head: bytes, *, to_head: bool) -> ResponseHead:
        """What a response head means.

        Args:
            head: with its empty line.
            to_head: it answers a HEAD request.

        Raises:
            MessageError: it must not be relayed.
        """
        if to_head:
            return parse_response_head(head, self._limits, to_head=True)
        response = self._responses.get(head) or self._responses.revive(head)
        if response is None:
            response = self._errors.get(head) or self._errors.revive(head)
        if response is None:
            response = parse_response_head(head, self._limits, to_head=False)
            if response.is_error:
                self._errors.put(head, response)
            elif not response.is_interim:
                self._responses.put(head, response)
        return response


UNREADABLE: Final = RequestPlan(RequestHead(b"", b"", is_http10=True), Route(UNKNOWN), fits=True)
"""Stands for a request whose head could not be read."""
