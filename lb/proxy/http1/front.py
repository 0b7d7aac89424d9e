"""Ports for hosting platforms: their requests are v2 requests in other clothes.

A head is translated once and remembered. What comes of it takes the same way as a request to the
v2 port from then on, access rules included: only its log line has the path that the client wrote.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from lb.kserve.fronts import Forward, FrontFault, FrontRequest, v2_head
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.http1.shared import Http1Shared
from lb.wire.cache import HeadCache
from lb.wire.http1.grammar import trimmed
from lb.wire.native import mypyc_attr

_NOWHERE: Final = b"/"
"""Stands for a request that we answer: no operation, so that the access rules still count."""
_TEXT: Final = b"text/plain"
"""What a Triton's front says that its own answers are, errors included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDecision:
    """What becomes of a request to a front."""

    plan: RequestPlan
    """The plan of the v2 request."""
    method: bytes
    path: bytes
    """As the client wrote them."""
    answer: Callable[[], Answer | None] | None = None
    """Answers it here, or not."""
    arrange: Callable[[Http1Exchange], None] | None = None
    """Gives its exchange what it needs beyond others."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Front(ABC):
    """One such port: what its requests mean."""

    chooses_variants: ClassVar[bool] = False
    """Its platform says in a header which variant of a model a request is for."""

    def __init__(self, relay: Http1Shared) -> None:
        self.relay = relay
        self._turns: HeadCache[FrontDecision] = HeadCache()
        self._heads = relay.heads
        """The heads that `_turns` comes from."""

    @property
    def may_remember(self) -> bool:
        """Whether equal heads mean the same until the process ends."""
        return True

    @abstractmethod
    def read(self, head: bytes, request: FrontRequest) -> FrontDecision:
        """Say what a request means.

        Raises:
            FrontFault: its content type cannot be meant.
            MessageError: it must not be relayed.
        """

    def turn(self, head: bytes) -> FrontDecision:
        """What becomes of a request, by its head.

        Raises:
            MessageError: it must not be relayed.
        """
        if self.relay.heads is not self._heads:
            self._heads, self._turns = self.relay.heads, HeadCache()
        turn = self._turns.get(head) or self._turns.revive(head)
        if turn is None:
            request = self._request(head)
            try:
                turn = self.read(head, request)
            except FrontFault as fault:
                body = json.dumps({"error": str(fault)}, separators=(",", ":")).encode()
                turn = self.answered(head, request, 400, body)
            if self.may_remember:
                self._turns.put(head, turn)
        return turn

    def _request(self, head: bytes) -> FrontRequest:
        parsed = self.relay.heads.parse(head)
        return FrontRequest(
            parsed.method,
            parsed.target.partition(b"?")[0],
            parsed.length,
            _first(head, b"content-type") or b"",
            _first(head, b"x-amzn-sagemaker-target-model") or b"",
            _first(head, b"x-vertex-ai-triton-redirect"),
        )

    def forwarded(
        self,
        head: bytes,
        request: FrontRequest,
        forward: Forward,
        *,
        answer: Callable[[], Answer | None] | None = None,
        arrange: Callable[[Http1Exchange], None] | None = None,
    ) -> FrontDecision:
        """It is a v2 request."""
        plan = self.relay.heads.base_plan(v2_head(head, forward))
        return FrontDecision(
            plan=plan, method=request.method, path=request.path, answer=answer, arrange=arrange
        )

    def answered(
        self, head: bytes, request: FrontRequest, status: int, body: bytes = b""
    ) -> FrontDecision:
        """It gets an answer on the spot."""
        given = Answer(status, body, content_type=_TEXT)
        forward = Forward(request.method, _NOWHERE)
        return self.forwarded(head, request, forward, answer=lambda: given)


def _first(head: bytes, name: bytes) -> bytes | None:
    """The value of the first field of that name, given in lower case, in a legal head."""
    for line in head.split(b"\r\n")[1:-2]:
        field, _, value = line.partition(b":")
        if field.lower() == name:
            return trimmed(value)
    return None
