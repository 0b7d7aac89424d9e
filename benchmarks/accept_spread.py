"""How connections spread over processes that accept at one socket, or at a socket each.

    python -m benchmarks.accept_spread [--workers 4] [--connections 8] [--rounds 100]

"One socket" is uvloop's server in each process, "in turns" how workers accept that know nothing of
each other, and "counted" how they accept with counts in shared memory. Printed for each way, and
for connections that come at once and one after the other: the mean share of the busiest process,
times the number of processes (1.00 is even), and in how many rounds some process had none. Also:
how many of 20 connections that come while one process is stopped (SIGSTOP) are not accepted within
a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import socket
import struct
import time
from typing import Any

import uvloop

from lb.net.acceptor import Acceptor, AcceptShare
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.neighbours import Neighbours
from lb.sharing.memory import attach, create

SETTLE_S = 0.25
"""Until all have told that the connections of the last round have ended."""
TURNS = "in turns"
COUNTED = "counted"


def listener(port: int, *, is_shared: bool) -> socket.socket:
    sock = socket.socket()
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


class _Greeter(asyncio.Protocol):
    """Tells each client which process it is."""

    index = 0
    open = 0

    def connection_made(self, transport: Any) -> None:
        _Greeter.open += 1
        transport.write(struct.pack("B", self.index))

    def connection_lost(self, exc: Exception | None) -> None:
        _Greeter.open -= 1


class _Unknown:
    """A part of processes that know nothing of each other."""

    def room(self) -> int:
        return 64

    def accepted(self, count: int) -> None:
        """Nobody hears of it."""


def serve(sock: socket.socket, index: int, way: str, board: int, count: int) -> None:
    _Greeter.index = index

    async def run() -> None:
        share: AcceptShare | None = None
        if way == TURNS:
            share = _Unknown()
        elif way == COUNTED:
            loop = asyncio.get_running_loop()
            share = neighbours = Neighbours(attach(board, count), index, count)
            name, timers = f"spread-{os.getppid()}", TimerWheel(loop)
            neighbours.start(loop, timers, name, time.monotonic, lambda: _Greeter.open)
        acceptor = Acceptor("spread", sock, _Greeter, lambda: 1000, TaskOwner(), share=share)
        await acceptor.open()
        await asyncio.sleep(60)

    uvloop.run(run())


def start(sockets: list[socket.socket], way: str) -> list[int]:
    children = []
    board = create(len(sockets))
    for index, sock in enumerate(sockets):
        child = os.fork()
        if not child:
            try:
                serve(sock, index, way, board, len(sockets))
            finally:
                os._exit(0)
        children.append(child)
    os.close(board)
    time.sleep(1.0)
    return children


def one_round(port: int, count: int, pause_s: float) -> list[int]:
    """Connect, and return by which process each connection was accepted."""
    clients = []
    for _ in range(count):
        clients.append(socket.create_connection(("127.0.0.1", port)))
        if pause_s:
            time.sleep(pause_s)
    found = [client.recv(1)[0] for client in clients]
    for client in clients:
        client.close()
    return found


def not_accepted(port: int, children: list[int]) -> int:
    """Connect while one process is stopped."""
    os.kill(children[0], signal.SIGSTOP)
    time.sleep(0.1)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    time.sleep(1.0)
    served = len(select.select(clients, [], [], 0)[0])
    os.kill(children[0], signal.SIGCONT)
    for client in clients:
        client.close()
    return len(clients) - served


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    one = listener(0, is_shared=False)
    several = [listener(0, is_shared=True)]
    port = several[0].getsockname()[1]
    several += [listener(port, is_shared=True) for _ in range(arguments.workers - 1)]
    ways: dict[str, list[socket.socket]] = {
        "one socket": [one] * arguments.workers,
        TURNS: [one] * arguments.workers,
        COUNTED: [one] * arguments.workers,
        "SO_REUSEPORT": several,
    }
    print(f"{arguments.workers} processes, {arguments.connections} connections")
    for name, sockets in ways.items():
        children = start(sockets, name)
        at = sockets[0].getsockname()[1]
        try:
            for how, pause_s in (("at once", 0.0), ("one by one", 0.005)):
                busiest, idle = 0.0, 0
                for _ in range(arguments.rounds):
                    found = one_round(at, arguments.connections, pause_s)
                    counts = [found.count(index) for index in range(arguments.workers)]
                    busiest += max(counts) / len(found) * arguments.workers
                    idle += min(counts) == 0
                    time.sleep(SETTLE_S)
                mean = busiest / arguments.rounds
                print(f"{name:14} {how:12} busiest {mean:.2f}  some idle {idle}/{arguments.rounds}")
            print(f"{name:14} one stopped: {not_accepted(at, children)} of 20 not accepted")
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


if __name__ == "__main__":
    main()
