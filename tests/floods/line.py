"""One connection of an attacker, and what became of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.wire import frames as fr

_NEVER = 0.0
_LOOK_S = 0.05
_ESTABLISHED = "01"


class Target(NamedTuple):
    """Where the load balancer listens, and where the attacker says it comes from."""

    http_port: int
    grpc_port: int
    ca: str = ""
    """With it the ports speak TLS."""
    source: str = "127.0.1.1"

    def context(self, protocol: str) -> ssl.SSLContext | None:
        """For a connection that speaks `protocol`."""
        if not self.ca:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca)
        context.set_alpn_protocols([protocol])
        return context


CODES = {
    code: name
    for name, code in vars(fr).items()
    if isinstance(code, int)
    and name.isupper()
    and (
        name.endswith("_ERROR")
        or name in ("STREAM_CLOSED", "REFUSED_STREAM", "CANCEL", "ENHANCE_YOUR_CALM")
    )
} | {4: "SETTINGS_TIMEOUT"}


class _Kernel:
    """Which connections the balancer still holds: what a client that does not read cannot see."""

    def __init__(self) -> None:
        self._read_at = _NEVER
        self._rows: list[tuple[int, int]] = []

    def established(self, port: int) -> set[int]:
        """Ports of those who are connected to `port`, as the server's sockets say."""
        now = time.monotonic()
        if now - self._read_at > _LOOK_S / 2:
            self._read_at = now
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            self._rows = [
                (int(row[1][9:], 16), int(row[2][9:], 16)) for row in rows if row[3] == _ESTABLISHED
            ]
        return {remote for local, remote in self._rows if local == port}


_KERNEL = _Kernel()


@dataclass
class Line(asyncio.Protocol):
    """What one connection sent and saw. Times are of the monotonic clock; 0 is never."""

    http2: bool = True
    reads: bool = True
    first: bytes = b""
    """What is sent as soon as the connection stands, with the last bytes of a TLS handshake: the
    balancer's timeouts count from there, and a busy machine may keep the attacker waiting."""
    opened_at: float = _NEVER
    cut_at: float = _NEVER
    """The other side ended it: GOAWAY with an error, or closed."""
    code: str = ""
    """Of the GOAWAY, or HTTP's status."""
    last_stream: int = 0
    resets: Counter[int] = field(default_factory=Counter)
    """RST_STREAM by code."""
    reset_at: list[float] = field(default_factory=list)
    pongs: int = 0
    acknowledged: int = 0
    """SETTINGS of ours."""
    received: int = 0
    """Bytes."""

    def __post_init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.left = False
        """We hung up ourselves."""
        self._reader = fr.FrameReader()
        self._change = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.reads:
            transport.pause_reading()
        if self.first:
            transport.write(self.first)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.left:
            self._cut("")
        self.transport = None
        self._may_write.set()
        self._change.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.reads and self.transport is not None:
            self.transport.pause_reading()
        if self.http2:
            for found in self._reader.feed(data):
                self._frame(found)
        elif not self.code:
            self.code = data[9:12].decode()
        self._change.set()

    def _frame(self, frame: fr.Frame) -> None:
        if frame.kind == fr.PING and frame.flags & fr.ACK:
            self.pongs += 1
        elif frame.kind == fr.SETTINGS and frame.flags & fr.ACK:
            self.acknowledged += 1
        elif frame.kind == fr.RST_STREAM:
            self.resets[frame.code] += 1
            self.reset_at.append(time.monotonic())
        elif frame.kind == fr.GOAWAY and frame.code:
            self.last_stream = frame.last_stream
            self._cut(CODES.get(frame.code, str(frame.code)))

    def _cut(self, code: str) -> None:
        if not self.cut_at:
            self.cut_at = time.monotonic()
            self.code = self.code or code

    # What a flood does with it

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return bool(self.cut_at) or self.transport is None

    async def send(self, data: bytes) -> bool:
        """Send when there is room.

        Returns:
            Whether the connection still stands.
        """
        await self._may_write.wait()
        if self.transport is None or self.is_over:
            return False
        self.transport.write(data)
        # A turn of the loop, so that what has come is seen.
        await asyncio.sleep(0)
        return not self.is_over

    def sip(self) -> None:
        """Take what one read takes."""
        if self.transport is not None:
            self.transport.resume_reading()

    async def pong(self, within_s: float = 5.0) -> bool:
        """PING, and wait for its answer; False when the connection ends instead."""
        wanted = self.pongs + 1
        if not await self.send(fr.ping()):
            return False
        return await self.until(lambda: self.pongs >= wanted, within_s) and not self.is_over

    async def until(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """Wait until `is_so()` or until it was cut; False when it takes too long."""
        try:
            async with asyncio.timeout(within_s):
                while not is_so() and not self.is_over:
                    await (self._change.wait() if self.reads else self._look())
                    self._change.clear()
        except TimeoutError:
            return False
        return True

    async def _look(self) -> None:
        """Ask the kernel, since nothing is read: the other side may have closed."""
        await asyncio.sleep(_LOOK_S)
        if self.transport is not None:
            here = self.transport.get_extra_info("sockname")[1]
            there = self.transport.get_extra_info("peername")[1]
            if here not in _KERNEL.established(there):
                self._cut("")

    async def until_answered(self, within_s: float) -> bool:
        """Wait until something came."""
        return await self.until(lambda: self.received > 0, within_s)

    async def until_reset(self, count: int, within_s: float) -> bool:
        """Wait until so many streams were reset."""
        return await self.until(lambda: len(self.reset_at) >= count, within_s)

    async def until_cut(self, within_s: float) -> bool:
        """Wait until the other side has ended it."""
        return await self.until(lambda: self.is_over, within_s)

    def leave(self) -> None:
        """Hang up with a reset, so that no port stays in TIME_WAIT."""
        self.left = True
        if self.transport is not None:
            self.transport.abort()


async def dial(
    target: Target,
    *,
    http2: bool = True,
    reads: bool = True,
    receive_buffer: int = 0,
    secure: bool = True,
    first: bytes = b"",
) -> Line:
    """Connect from the attacker's address.

    Args:
        target: see there.
        http2: to the gRPC port; otherwise to the HTTP port.
        reads: take what comes.
        receive_buffer: of the kernel, bytes; 0 leaves it alone.
        secure: speak TLS if the target does.
        first: see `Line`.

    Raises:
        OSError: it could not be made.
    """
    port = target.grpc_port if http2 else target.http_port
    tls = target.context("h2" if http2 else "http/1.1") if secure else None
    raw = socket.socket(proto=socket.IPPROTO_TCP)
    raw.setblocking(False)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    try:
        raw.bind((target.source, 0))
        await loop.sock_connect(raw, ("127.0.0.1", port))
    except OSError:
        raw.close()
        raise
    name = "localhost" if tls else None
    _, line = await loop.create_connection(
        lambda: Line(http2=http2, reads=reads, first=first),
        sock=raw,
        ssl=tls,
        server_hostname=name,
    )
    line.opened_at = began
    return line


async def greeted(
    target: Target,
    values: dict[int, int] | None = None,
    *,
    reads: bool = True,
    receive_buffer: int = 0,
) -> Line:
    """Connect to the gRPC port and send preface, SETTINGS, and a wide connection window."""
    line = await dial(target, reads=reads, receive_buffer=receive_buffer)
    await line.send(fr.PREFACE + fr.settings(values or {}) + fr.window_update(0, 2**30))
    return line
