"""Stand-in for the gRPC side of Tritons where nghttpd will not do: streams, and very many ports.

Run as `python -m benchmarks.load.grpc_backend PORT...`. ModelStreamInfer answers every message that
is as long as `payloads.small_grpc_request` with a result of the same length; the message itself
would be read as an error. Any other call is answered from `payloads.GRPC_ANSWERS` at its end. Our
sending ignores the peer's windows: answers are small, and the load keeps one message in flight per
stream.

We allow no dynamic header table, so once a peer has heeded that, equal blocks mean equal paths and
need not be decoded again.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from hpack import Decoder

from benchmarks.load import payloads
from tests.wire import frames

_ANSWER_HEAD = b"\x88" + frames.literal(b"content-type", b"application/grpc")
_TRAILERS = frames.literal(b"grpc-status", b"0")
_UNKNOWN = _ANSWER_HEAD + frames.literal(b"grpc-status", b"12")
_RESULT = payloads.small_stream_answer()
_CREDIT_STEP = 1 << 20
_KNOWN_BLOCKS = 4096

_paths: dict[bytes, str] = {}


class BackendConnection(asyncio.Protocol):
    """Server side of one HTTP/2 connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = frames.FrameReader(skips=len(frames.PREFACE))
        self._decoder = Decoder()
        self._uncredited = 0
        self._begun: dict[int, int] = {}
        """Bytes of the message under way, by open stream."""
        self._called: dict[int, str] = {}
        self._transport.write(frames.opening({frames.HEADER_TABLE_SIZE: 0}))

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for found in self._reader.feed(data):
            kind, flags, stream, payload = found
            if kind == frames.DATA:
                self._on_data(out, flags, stream, payload)
            elif kind == frames.HEADERS:
                self._on_headers(out, flags, stream, payload)
            elif kind == frames.RST_STREAM:
                self._begun.pop(stream, None)
                self._called.pop(stream, None)
            elif reply := frames.due_reply(found):
                out.append(reply)
        if out:
            self._transport.write(b"".join(out))

    def _on_headers(self, out: list[bytes], flags: int, stream: int, block: bytes) -> None:
        if flags & frames.PADDED:
            block = block[1 : len(block) - block[0]]
        if flags & frames.PRIORITY_FLAG:
            block = block[5:]
        path = self._path(block)
        if path == payloads.STREAM_PATH:
            self._begun[stream] = 0
            out.append(frames.headers(stream, _ANSWER_HEAD))
        else:
            self._called[stream] = path
        if flags & frames.END_STREAM:
            self._end(out, stream)

    def _path(self, block: bytes) -> str:
        known = self._decoder.header_table.maxsize == 0
        if known and block in _paths:
            return _paths[block]
        fields = self._decoder.decode(block, raw=True)
        path = next(value for name, value in fields if name == b":path").decode()
        if known and len(_paths) < _KNOWN_BLOCKS:
            _paths[block] = path
        return path

    def _on_data(self, out: list[bytes], flags: int, stream: int, payload: bytes) -> None:
        self._uncredited += len(payload)
        if self._uncredited >= _CREDIT_STEP:
            out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        if stream in self._begun:
            whole, self._begun[stream] = divmod(self._begun[stream] + len(payload), len(_RESULT))
            out += [frames.data(stream, _RESULT)] * whole
        if flags & frames.END_STREAM:
            self._end(out, stream)

    def _end(self, out: list[bytes], stream: int) -> None:
        if self._begun.pop(stream, None) is not None:
            out.append(frames.headers(stream, _TRAILERS, end=True))
            return
        answer = payloads.GRPC_ANSWERS.get(self._called.pop(stream, "")[1:])
        if answer is None:
            out.append(frames.headers(stream, _UNKNOWN, end=True))
            return
        out.append(frames.headers(stream, _ANSWER_HEAD))
        out.append(frames.data(stream, answer))
        out.append(frames.headers(stream, _TRAILERS, end=True))


async def serve(ports: list[int]) -> None:
    """Serve on loopback until the process is ended."""
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(BackendConnection, "127.0.0.1", port, backlog=1024)
    await loop.create_future()


def main() -> None:
    ports = [int(each) for each in sys.argv[1:]]
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(ports))
    else:
        uvloop.run(serve(ports))


if __name__ == "__main__":
    main()
