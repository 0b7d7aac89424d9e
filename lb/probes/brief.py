"""A probe's conversation over a plain TCP socket, without a transport of the event loop.

Transports, and a time-out of its own for each step, cost more than all that the kernel does for
such a connection, which shows where hundreds of ports are probed each second.
"""

from __future__ import annotations

import asyncio
import os
import socket
from errno import EINPROGRESS
from ssl import SSLError
from typing import Final

from lb.domain.backend import Address
from lb.health.port import Finding
from lb.net.dial import connect_failure
from lb.net.tls.contexts import describe
from lb.probes.plan import READY, Conversation, ProbeAnswer

_READ_BYTES: Final = 65_536


class BriefClientCall:
    """One conversation with an address that is numeric. `close` has to follow."""

    __slots__ = (
        "_address",
        "_client_call",
        "_fd",
        "_heard",
        "_loop",
        "_outcome",
        "_socket",
        "_unsent",
        "_waits",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        opening: bytes,
        client_call: Conversation | None,
        outcome: asyncio.Future[ProbeAnswer],
    ) -> None:
        """Prepare it.

        Args:
            loop: the running one.
            address: whom to call.
            opening: what to send when the connection stands.
            client_call: what listens; None when connecting is the whole of it.
            outcome: gets the answer, or an UpstreamError where there is no connection.

        Raises:
            OSError: there is no socket left.
        """
        self._loop = loop
        self._address = address
        self._unsent = opening
        self._client_call = client_call
        self._outcome = outcome
        self._heard = False
        self._waits = False
        """To write, or for the connection to stand."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._fd = self._socket.fileno()

    def begin(self) -> None:
        """Connect, and go on as far as that goes at once: on loopback it stands already."""
        try:
            error = self._socket.connect_ex((self._address.host, self._address.port))
        except OSError as failure:  # such as gaierror: there is no interface of that name
            self._outcome.set_exception(connect_failure(self._address, failure))
            return
        if error == EINPROGRESS:
            self._waits = True
            self._loop.add_writer(self._fd, self._tried)
        else:
            self._connected(error)

    def close(self) -> None:
        """Hang up."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()

    def _tried(self) -> None:
        self._connected(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _connected(self, error: int) -> None:
        if self._outcome.done():
            return
        if error:
            failure = OSError(error, os.strerror(error))
            self._outcome.set_exception(connect_failure(self._address, failure))
        elif self._client_call is None:
            self._settle(READY)
        else:
            self._loop.add_reader(self._fd, self._read, self._client_call)
            self._write()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._settle(answer_of_loss(error, heard=self._heard))
            return
        if self._unsent:
            self._waits = True
            self._loop.add_writer(self._fd, self._write)
        elif self._waits:
            self._waits = False
            self._loop.remove_writer(self._fd)

    def _read(self, client_call: Conversation) -> None:
        if self._outcome.done():
            return  # whoever waits for it has not hung up yet
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._settle(answer_of_loss(error, heard=self._heard))
            return
        if not data:
            self._settle(answer_of_loss(None, heard=self._heard))
            return
        self._heard = True
        reply = client_call.receive(data)
        if client_call.answer is not None:
            self._settle(client_call.answer)
        elif reply:
            self._unsent += reply
            self._write()

    def _settle(self, answer: ProbeAnswer) -> None:
        if not self._outcome.done():
            self._outcome.set_result(answer)


def answer_of_loss(error: Exception | None, *, heard: bool) -> ProbeAnswer:
    """What it means that a connection was lost before the answer: a reset right away refuses."""
    if isinstance(error, ConnectionError) and not heard:
        return ProbeAnswer(Finding.REFUSED, "connection reset")
    why = f": {describe(error)}" if isinstance(error, SSLError) else ""
    return ProbeAnswer(Finding.ERROR, f"connection closed without an answer{why}")
