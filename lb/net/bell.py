"""Bells between the workers of one machine: each can wake the event loop of any other.

A bell is a datagram socket with an abstract name, so that nothing has to be inherited or removed. A
datagram says nothing but that there is something to look at; one that is lost costs a tenth of a
second, after which the worker looks anyway. Any process on the machine could ring, to no effect.
"""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable


class Bell:
    """The bell of one worker, with which it also rings for the others."""

    def __init__(
        self, loop: AbstractEventLoop, name: str, index: int, hear: Callable[[], None]
    ) -> None:
        """
        Args:
            loop: of this worker.
            name: of the service. It must not be that of any other on this machine.
            index: of this worker.
            hear: called when another one has rung.

        Raises:
            OSError: another process has this worker's bell.
        """
        self._loop = loop
        self._name = name
        self._hear = hear
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(self._address(index))
        except OSError:
            self._socket.close()
            raise
        loop.add_reader(self._socket.fileno(), self._heard)

    def ring(self, index: int) -> None:
        """Wake a worker. One that is not there, or has many rings to hear, is left alone."""
        try:
            self._socket.sendto(b"", self._address(index))
        except OSError:
            pass  # it will look by itself, if it comes back

    def close(self) -> None:
        """Hear nothing any more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _address(self, index: int) -> bytes:
        return f"\0{self._name}-bell-{index}".encode()

    def _heard(self) -> None:
        # One at a time: the event loop calls again while there are others, which is rare.
        self._socket.recv(1)
        self._hear()
