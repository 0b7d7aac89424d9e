"""Inferences that are looked into for shared memory, which their client may not use.

As `lb.proxy.http1.watched`: what names a region does not reach the backend as a whole.
"""

from __future__ import annotations

from typing import Any

from lb.access.gate import Claim
from lb.domain.outcome import Reason
from lb.kserve.regions import REFUSED, GrpcRegionWatch
from lb.proxy.http2.call import Call
from lb.wire.http2.flow import Payload, Pipe


def watched(kind: type[Call]) -> type[Call]:
    """The same kind of call, where `access.strict_shared_memory` is on."""

    class WatchedCall(kind):  # type: ignore[valid-type, misc]  # any kind of call can be watched
        __slots__ = ("_watch",)

        def _proceed(self, end_stream: bool) -> None:
            """The head may pass."""
            claim = self.head.claim
            known = claim if isinstance(claim, Claim) else None
            gate = self.relay.dispatcher.gate
            may_use = gate.may_use_memory(known, self.server.client)
            self._watch = None if may_use else GrpcRegionWatch()
            super()._proceed(end_stream)

        def passes(self, pipe: Pipe[Any]) -> bool:
            """Whether payload goes on as it comes: what is watched does not."""
            return self._watch is None and bool(super().passes(pipe))

        def request_data(self, payload: Payload, end_stream: int) -> None:
            """Payload of the request arrived."""
            if self._watch is not None and self._watch.refuses(payload) and not self.finished:
                self.fail(Reason.CONTROL_REFUSED, REFUSED)
            else:
                super().request_data(payload, end_stream)

    return WatchedCall
