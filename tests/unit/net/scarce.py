"""A listener in a process without a descriptor to spare: run by a test, which reads the output.

Usage: python -m tests.unit.net.scarce asyncio|uvloop
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys

import uvloop

from tests.unit.net.test_acceptor import House, ask, leave


class Descriptors:
    """The limit of open descriptors of this process."""

    def __init__(self) -> None:
        self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._highest = 0

    def exhaust(self) -> None:
        """Leave none: those between the open ones, such as a parent leaves, are taken as well."""
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        while self._highest <= highest:
            self._highest = os.open(os.devnull, os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._highest + 1, self._hard))

    def give(self, spare: int) -> None:
        """Leave so many."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._highest + 1 + spare, self._hard))


async def play() -> None:
    """A connection comes when there is no descriptor for it, and others when there are some."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # both loops tell of it
    descriptors = Descriptors()
    house = House(1000)
    await house.acceptor.open()
    client = socket.socket()
    client.setblocking(False)
    descriptors.exhaust()
    await loop.sock_connect(client, (house.address.host, house.address.port))
    # asyncio leaves the connection waiting, libuv closes it: either way nobody is inside.
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not house.guests
    descriptors.give(100)
    client.close()
    answer = b""
    while answer != b"x":
        reader, writer = await house.connect()
        try:
            answer = await ask(reader, writer)
        except OSError:
            answer = b""  # it came while libuv still turned everybody away
        finally:
            await leave(writer)
    await house.close()


def main() -> None:
    """Play it, within 20 seconds."""
    factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(play(), 20))
    sys.stdout.write("refused, then served\n")


if __name__ == "__main__":
    main()
