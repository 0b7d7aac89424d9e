"""How long one turn of the loop gets by what clients and backends send on purpose.

    python -m benchmarks.bench_stalls [CASE ...]

A real balancer stands before a backend. A good client asks for `/v2/health/live`, again 5 ms after
each answer. Beside it one case after the other runs for a few seconds. Printed are the good
client's latency, and the longest turns of the balancer's loop: processor time of its thread
between two ticks of a millisecond, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from benchmarks.bench_views import quantile, run_good
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.floods.backend import Counters, GrpcConnection
from tests.wire import frames as fr

LASTS_S = 5.0
TICK_S = 0.001
LONG_S = 0.003
"""Turns from this on are written down."""
TURNS = "TURNS_FILE"
READ = 256 * 1024
NEWCOMERS = 900
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_CHUNK = b"1\r\nx\r\n"
_LINE = b"1\r\n\n\r\n"
_CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"


# The balancer


def serve(config: str) -> None:
    """The balancer with a ticking loop that writes down long turns."""
    import uvloop

    plain = uvloop.new_event_loop

    def ticking() -> asyncio.AbstractEventLoop:
        loop = plain()
        out = Path(os.environ[TURNS]).open("a", buffering=1)  # noqa: SIM115  # to the end
        last = time.thread_time()

        def tick() -> None:
            nonlocal last
            now = time.thread_time()
            if now - last >= LONG_S:
                out.write(f"{time.monotonic()} {now - last}\n")
            last = now
            loop.call_later(TICK_S, tick)

        loop.call_later(TICK_S, tick)
        return loop

    uvloop.new_event_loop = ticking
    sys.argv = ["triton-lb", "serve", "--config", config]
    runpy.run_module("lb", run_name="__main__")


# The backend


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while line := await reader.readline():
            path, size = line.split()[1], 0
            while (field := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = field.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
                if name.lower() == b"transfer-encoding":
                    while await reader.read(READ):
                        pass
                    return
            await reader.readexactly(size)
            if path == b"/v2/repository/index":
                body = b'[{"name":"m","version":"1","state":"READY"}]'
            elif path in (b"/v2/models/storm", b"/v2/models/lines"):
                chunk = _CHUNK if path.endswith(b"storm") else _LINE
                writer.write(_OK + b"Transfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(chunk * (READ // len(chunk)))
                    await writer.drain()
            else:
                body = b"{}"
            writer.write(_OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    writer.close()


def run_backend(connection: Connection) -> None:
    """A process with one backend."""

    async def listen() -> None:
        http = await asyncio.start_server(_answer, "127.0.0.1", 0)
        counters = Counters()
        grpc = await asyncio.get_running_loop().create_server(
            lambda: GrpcConnection(counters), "127.0.0.1", 0
        )
        connection.send([each.sockets[0].getsockname()[1] for each in (http, grpc)])
        await asyncio.Event().wait()

    asyncio.run(listen())


# The cases


def _crumbs(count: int) -> bytes:
    """A request of the model "m" with very many empty parameters, perhaps of a sequence."""
    return b"\x0a\x01m\x1a\x0bsequence_id" + b"\x22\x00" * count


class Case:
    """What runs beside the good client."""

    def __init__(self, http: int, grpc: int, discovered: Path) -> None:
        self.http = http
        self.grpc = grpc
        self.discovered = discovered
        self.until = time.monotonic() + LASTS_S

    async def nothing(self) -> None:
        await asyncio.sleep(LASTS_S)

    async def _pour(self, first: bytes, more: bytes) -> None:
        """Send without an end, and read what comes."""
        while time.monotonic() < self.until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.http)

            async def read(reader: asyncio.StreamReader = reader) -> None:
                with contextlib.suppress(OSError):
                    while await reader.read(READ):
                        pass

            reading = asyncio.create_task(read())
            with contextlib.suppress(OSError):
                writer.write(first)
                while time.monotonic() < self.until:
                    writer.write(more)
                    await writer.drain()
                    await asyncio.sleep(0)
            reading.cancel()
            writer.transport.abort()

    async def _many(self, count: int, first: bytes, more: bytes) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LASTS_S):
                await asyncio.gather(*(self._pour(first, more) for _ in range(count)))

    async def chunk(self) -> None:
        await self._many(1, _CHUNKED, _CHUNK * (READ // 6))

    async def chunks(self) -> None:
        await self._many(32, _CHUNKED, _CHUNK * (READ // 6))

    async def pipelined(self) -> None:
        await self._many(1, b"", _LIVE * 2000)

    async def pipelines(self) -> None:
        await self._many(32, b"", _LIVE * 2000)

    async def heads(self) -> None:
        names = b",".join(b"a%d" % at for at in range(5000))
        await self._many(16, b"", _LIVE[:-2] + b"Connection: %b\r\n\r\n" % names)

    async def targets(self) -> None:
        await self._many(16, b"", b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"%25" * 2600))

    async def _take(self, path: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.http)
            writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            while time.monotonic() < self.until and await reader.read(READ):
                pass
            writer.transport.abort()

    async def storm(self) -> None:
        await self._take(b"/v2/models/storm")

    async def storms(self) -> None:
        await asyncio.gather(*(self._take(b"/v2/models/storm") for _ in range(16)))

    async def lines(self) -> None:
        await asyncio.gather(*(self._take(b"/v2/models/lines") for _ in range(16)))

    async def _call(self, message: bytes, *, is_compressed: bool) -> None:
        fields = fr.request_fields()
        if is_compressed:
            fields = [*fields, (b"grpc-encoding", b"gzip")]
        block = fr.literals(fields)
        framed = bytes((is_compressed,)) + len(message).to_bytes(4, "big") + message
        calls = b"".join(
            fr.headers(2 * at + 1, block) + fr.data(2 * at + 1, framed, end=True)
            for at in range(500)
        )
        hello = fr.settings({fr.INITIAL_WINDOW_SIZE: 1 << 20}) + fr.window_update(0, 2**30)
        writers = []
        while time.monotonic() < self.until:
            # None is closed meanwhile: the end of so many calls is another case.
            _, writer = await asyncio.open_connection("127.0.0.1", self.grpc)
            writers.append(writer)
            writer.write(fr.PREFACE + hello + calls)
            await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)

    async def fields(self) -> None:
        message = _crumbs(1000)
        await asyncio.gather(*(self._call(message, is_compressed=False) for _ in range(16)))

    async def inflated(self) -> None:
        message = gzip.compress(_crumbs(100_000))
        await asyncio.gather(*(self._call(message, is_compressed=True) for _ in range(16)))

    async def newcomers(self) -> None:
        """A file with very many backends appears, and is empty again."""
        entries = [
            {"name": f"new-{at}", "http": f"127.0.2.{1 + at // 250}:{2000 + at}"}
            for at in range(NEWCOMERS)
        ]
        for content in (entries, []):
            other = self.discovered.with_suffix(".new")
            other.write_text(yaml.safe_dump({"backends": content}))
            other.rename(self.discovered)
            await asyncio.sleep(LASTS_S)


CASES: dict[str, Callable[[Case], Awaitable[None]]] = {
    "idle": Case.nothing,
    "request chunks, 1": Case.chunk,
    "request chunks, 32": Case.chunks,
    "pipelined, 1": Case.pipelined,
    "pipelined, 32": Case.pipelines,
    "options, 16": Case.heads,
    "escapes, 16": Case.targets,
    "answer chunks, 1": Case.storm,
    "answer chunks, 16": Case.storms,
    "answer lines, 16": Case.lines,
    "gRPC fields, 16": Case.fields,
    "gRPC inflated, 16": Case.inflated,
    "900 newcomers": Case.newcomers,
}


def measure(play: Callable[[Case], Awaitable[None]], folder: Path) -> str:
    """Figures of one row of the table."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    good_here, good_there = spawn.Pipe()
    backend = spawn.Process(target=run_backend, args=(there,), daemon=True)
    backend.start()
    backend_http, backend_grpc = here.recv()
    http, grpc, metrics = free_ports(3)
    discovered = folder / "found.yaml"
    discovered.write_text("backends: []\n")
    config: dict[str, Any] = {
        "listen": {
            "http": {"address": f"127.0.0.1:{http}"},
            "grpc": {"address": f"127.0.0.1:{grpc}"},
            "metrics": {"address": f"127.0.0.1:{metrics}"},
        },
        "backends": [
            {
                "name": "b",
                "http": f"127.0.0.1:{backend_http}",
                "grpc": f"127.0.0.1:{backend_grpc}",
            }
        ],
        "discovery": {"files": [str(discovered)]},
    }
    path, turns = folder / "config.yaml", folder / "turns"
    path.write_text(yaml.safe_dump(config))
    turns.touch()
    balancer = ChildProcess(
        (sys.executable, "-m", "benchmarks.bench_stalls", "--serve", str(path)),
        log=folder / "serve.log",
        env={**ENVIRONMENT, TURNS: str(turns)},
    )
    try:
        wait_until(
            lambda: " serving " in balancer.log.read_text(), timeout_s=30.0, what="the start"
        )
        time.sleep(2.0)
        good = spawn.Process(target=run_good, args=(http, good_there), daemon=True)
        good.start()
        time.sleep(1.0)
        began = time.monotonic()
        asyncio.run(play(Case(http, grpc, discovered)))
        ended = time.monotonic()
        good_here.send(True)
        took = sorted(good_here.recv())
        seen = [tuple(map(float, line.split())) for line in turns.read_text().splitlines()]
        long = sorted(cpu_s for at, cpu_s in seen if began < at < ended + 0.1)
        figures = " ".join(f"{1000 * quantile(took, share):8.1f}" for share in (0.5, 0.99, 1.0))
        longest = long[-1] if long else 0.0
        over = sum(cpu_s > 0.01 for cpu_s in long)
        return f"{figures} {1000 * longest:9.1f} {over:7}"
    finally:
        balancer.close()
        backend.kill()


def main() -> None:
    """Measure the cases that are named, or all."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return
    print(f"{'case, milliseconds':20}      p50      p99      max   longest   >10 ms")
    for name, play in CASES.items():
        if not sys.argv[1:] or any(part in name for part in sys.argv[1:]):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{name:20} {measure(play, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
