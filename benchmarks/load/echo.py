"""Backend of the stream cells: sends every message of a gRPC stream back as it comes.

Run as `python -m benchmarks.load.echo PORT`. An empty message (the health calls of Triton
and of gRPC send one) is answered with `true`. Our sending ignores the peer's windows: the load
keeps one message in flight per stream, so they cannot run out.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from benchmarks.load import frames, payloads

_ANSWER_HEAD = b"\x88" + frames.literal(b"content-type", b"application/grpc")
_TRAILERS = frames.literal(b"grpc-status", b"0")
_EMPTY_MESSAGE = bytes(5)
_CREDIT_STEP = 1 << 20


class EchoConnection(asyncio.Protocol):
    """Server side of one HTTP/2 connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = frames.FrameReader()
        self._to_preface = len(frames.PREFACE)
        self._uncredited = 0
        self._transport.write(frames.opening())

    def data_received(self, data: bytes) -> None:
        if self._to_preface:
            skipped = min(self._to_preface, len(data))
            self._to_preface -= skipped
            data = data[skipped:]
        out: list[bytes] = []
        for kind, flags, stream, payload in self._reader.feed(data):
            if kind == frames.DATA:
                self._on_data(out, flags, stream, payload)
            elif kind == frames.HEADERS:
                out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, _ANSWER_HEAD))
            elif kind in {frames.SETTINGS, frames.PING} and not flags & frames.ACK:
                echoed = payload if kind == frames.PING else b""
                out.append(frames.frame(kind, frames.ACK, 0, echoed))
        if out:
            self._transport.write(b"".join(out))

    def _on_data(self, out: list[bytes], flags: int, stream: int, payload: bytes) -> None:
        self._uncredited += len(payload)
        if self._uncredited >= _CREDIT_STEP:
            out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        if payload == _EMPTY_MESSAGE:
            payload = payloads.TRUE_MESSAGE
        if payload:
            out.append(frames.frame(frames.DATA, 0, stream, payload))
        if flags & frames.END_STREAM:
            flags = frames.END_HEADERS | frames.END_STREAM
            out.append(frames.frame(frames.HEADERS, flags, stream, _TRAILERS))


async def serve(port: int) -> None:
    """Serve on loopback until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(EchoConnection, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(int(sys.argv[1])))
    else:
        uvloop.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
