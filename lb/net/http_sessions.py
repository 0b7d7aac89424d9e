"""HTTP connections of aiohttp sessions, to servers that are not trusted to answer at all.

aiohttp reads as many 1xx answers as come before the final one. A server that sends nothing else
would keep the event loop busy for half a second per read, and fill memory until a timeout.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from lb.wire.http1.limits import INTERIM_RESPONSES

_STEP_BYTES: Final = 1024
"""Bytes read at once until the final head has come: forty of the shortest heads."""


class SteadyConnector(aiohttp.TCPConnector):
    """Connections for any number of requests at a time, which end on endless 1xx answers."""

    def __init__(self, *, force_close: bool = False) -> None:
        """
        Args:
            force_close: have a fresh connection for each request.
        """
        super().__init__(limit=0, force_close=force_close)
        self._factory = cast("partial[ResponseHandler]", partial(_Connection, loop=self._loop))


class _Connection(ResponseHandler):
    """Counts the 1xx answers to each request."""

    _interim = 0
    _has_head = False
    """The final head has come."""
    _is_refused = False

    def set_response_params(self, **params: Any) -> None:
        """See `ResponseHandler`: a request is about to be sent."""
        self._interim, self._has_head = 0, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        at = 0
        while at < len(data) and not self._has_head and not self._is_refused:
            super().data_received(data[at : at + _STEP_BYTES])
            at += _STEP_BYTES
        if not self._is_refused and (at < len(data) or not data):
            super().data_received(data[at:])

    def feed_data(self, data: Any, size: int = 0) -> None:
        """See `DataQueue`: another head has come."""
        message, _ = data
        if message.code >= 200:
            self._has_head = True
        elif self._interim < INTERIM_RESPONSES:
            self._interim += 1
        elif self._is_refused:
            return
        else:
            self._is_refused = True
            self.set_exception(aiohttp.ClientPayloadError("endless interim answers"))
            if self.transport is not None:
                self.transport.abort()
            return
        super().feed_data(data, size)
