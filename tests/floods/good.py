"""The good client: 50 requests per second in an open loop, half gRPC and half HTTP.

Each is timed from the moment at which it was due, so that what queues up behind a stall counts.
Most share a few connections, some bring a fresh one. Every answer must hold the request's own
token. Run as `python -m tests.floods.good HTTP_PORT GRPC_PORT OUT CA`; SIGTERM ends it, and what
it saw is in OUT. CA is empty for plain ports.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.floods.observation import GOOD_MODEL
from tests.wire import frames as fr
from tests.wire.http2 import Peer

RATE = 50.0
"""Requests per second."""
_FRESH_EVERY = 20
"""Of so many requests of a protocol one is on a connection of its own."""
_PATIENCE_S = 10.0


class Sample(NamedTuple):
    """One request: when it was due (monotonic), how long it took, and what was wrong."""

    due: float
    took_s: float
    error: str


def tls_context(ca: str, protocol: str) -> ssl.SSLContext | None:
    """For a client that trusts `ca`; None without one."""
    if not ca:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.set_alpn_protocols([protocol])
    return context


class GrpcClient:
    """One HTTP/2 connection for unary calls."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._next = 1
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self.is_over = False
        self._reading = asyncio.create_task(self._read())

    async def call(self, body: bytes) -> bytes:
        """Send a call and return the message of its answer.

        Raises:
            ConnectionError: there was none, or a status other than OK.
        """
        stream, self._next = self._next, self._next + 2
        over = self._waiting[stream] = asyncio.get_running_loop().create_future()
        self._peer.send(fr.call(stream, body))
        await over
        if (code := self._peer.resets.get(stream)) is not None:
            raise ConnectionError(f"reset, code {code}")
        if (status := self._peer.status(stream)) != 0:
            text = self._peer.fields(stream).get(b"grpc-message", b"").decode()
            raise ConnectionError(f"status {status} {text}")
        return bytes(self._peer.bodies.get(stream, b""))

    async def _read(self) -> None:
        """Wake calls whose streams are over; once the connection is, fail the others."""
        why = "connection lost"
        try:
            while (found := await self._peer.next()) is not None:
                if found.kind == fr.GOAWAY:
                    why = f"GOAWAY, code {found.code}"
                    break
                if self._peer.is_over(found.stream):
                    self._wake(found.stream)
        except (OSError, TimeoutError) as error:
            why = repr(error)
        self.is_over = True
        for stream in tuple(self._waiting):
            self._wake(stream, ConnectionError(why))

    def _wake(self, stream: int, error: ConnectionError | None = None) -> None:
        over = self._waiting.pop(stream, None)
        if over is None or over.done():  # its call may have given up
            return
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    def close(self) -> None:
        """Leave."""
        self._reading.cancel()
        self._peer.abort()


class Client:
    """Both halves."""

    def __init__(self, http_port: int, grpc_port: int, ca: str) -> None:
        self._http_port = http_port
        self._grpc_port = grpc_port
        self._http_tls = tls_context(ca, "http/1.1")
        self._grpc_tls = tls_context(ca, "h2")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._shared: GrpcClient | None = None
        self.samples: list[Sample] = []

    async def _dial_grpc(self) -> GrpcClient:
        name = "localhost" if self._grpc_tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._grpc_port, ssl=self._grpc_tls, server_hostname=name
        )
        peer = Peer(reader, writer)
        peer.send(fr.PREFACE, fr.settings())
        return GrpcClient(peer)

    async def _grpc(self, token: bytes, fresh: bool) -> None:
        client = self._shared
        if fresh or client is None or client.is_over:
            client = await self._dial_grpc()
            if not fresh:
                self._shared = client
        body = await client.call(
            fr.message(b"\x0a" + bytes((len(GOOD_MODEL),)) + GOOD_MODEL + token)
        )
        if fresh:
            client.close()
        if not body.endswith(token):
            raise ConnectionError("somebody else's answer")

    async def _http(self, token: bytes, fresh: bool) -> None:
        if self._idle and not fresh:
            reader, writer = self._idle.pop()
        else:
            name = "localhost" if self._http_tls else None
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._http_port, ssl=self._http_tls, server_hostname=name
            )
        writer.write(
            b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: lb\r\nContent-Length: %d\r\n\r\n%b"
            % (GOOD_MODEL, len(token), token)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(head.partition(b"\r\n")[0].decode())
        if await reader.readexactly(len(token)) != token:
            raise ConnectionError("somebody else's answer")
        if fresh:
            writer.close()
        else:
            self._idle.append((reader, writer))

    async def once(self, number: int, due: float) -> None:
        """One request."""
        ask = self._http if number % 2 else self._grpc
        token = b"token-%09d" % number
        error = ""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await ask(token, number // 2 % _FRESH_EVERY == 0)
        except (OSError, EOFError, ssl.SSLError, TimeoutError) as failure:
            error = f"{ask.__name__.strip('_')}: {type(failure).__name__} {failure}"
        self.samples.append(Sample(due, time.monotonic() - due, error))

    def close(self) -> None:
        """Leave."""
        for _, writer in self._idle:
            writer.close()
        if self._shared is not None:
            self._shared.close()


async def _run(http_port: int, grpc_port: int, ca: str) -> list[Sample]:
    client = Client(http_port, grpc_port, ca)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    began = time.monotonic()
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(client.once(number, due))
            number += 1
    client.close()
    await asyncio.sleep(0)
    return client.samples


def main(http_port: str, grpc_port: str, out: str, ca: str) -> None:
    """Send until SIGTERM, then write what was seen."""
    Path(out).write_text(json.dumps(asyncio.run(_run(int(http_port), int(grpc_port), ca))))


if __name__ == "__main__":
    main(*sys.argv[1:])
