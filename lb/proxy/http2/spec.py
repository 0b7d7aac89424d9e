"""Calls whose model stands deeper in the message: those of TF Serving."""

from __future__ import annotations

from typing import Final

from lb.domain.operation import ModelIn
from lb.proxy.http2.call import Call
from lb.wire.grpc.message import nested_name
from lb.wire.http2.flow import Payload

_DEPTHS: Final = {ModelIn.SPEC: 1, ModelIn.TASK: 2}
_PEEK: Final = 2048
"""Bytes of the message that are looked at before a call is placed without a model."""


class SpecCall(Call):
    """A call that waits for its model's name."""

    __slots__ = ()

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        if end_stream:
            self._place()
        else:
            self.held_back = True

    def _peek(self, payload: Payload, end_stream: int) -> bool:
        """Look for the name in the first bytes. False when the call is over."""
        head = bytes(payload[:_PEEK])
        if self.request.queue:
            head = b"".join((*self.request.queue, head))[:_PEEK]
        name = nested_name(head, _DEPTHS[self.operation.model_in])
        if name is None and not end_stream and len(head) < _PEEK:
            return True
        self.held_back = False
        self.model = name or b""
        self._place()
        return not self.finished
