"""What pages and statistics of backends cost a client that has nothing to do with them.

    python -m benchmarks.bench_views [CASE ...]

A real balancer stands before two backends whose answers are large. A good client asks for
`/v2/health/live`, again 5 ms after each answer. Beside it one case after the other runs. Printed
are the good client's latency, and the processor time and the growth of the resident memory of the
balancer.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until

EVERY_S = 0.005
LASTS_S = 12.0
MODELS = 10_000
PAGE_BYTES = 8 * 2**20 - 4096
VIEWS = 60


# The backends


def _duration(number: int) -> dict[str, int]:
    return {"count": number, "ns": 1000 * number}


def model_entry(name: str, keys: Iterator[int] | None = None) -> dict[str, Any]:
    """Statistics of one model as a Triton gives them; with `keys`, rows that never repeat."""
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    timed = {part: _duration(5) for part in (*parts, "cache_hit", "cache_miss")}
    row = {part: _duration(5) for part in ("compute_input", "compute_infer", "compute_output")}
    sizes = [next(keys) for _ in range(1000)] if keys else [1]
    return {
        "name": name,
        "version": "1",
        "last_inference": 1795259527273,
        "inference_count": 5,
        "execution_count": 5,
        "inference_stats": timed,
        "response_stats": {str(next(keys)): row for _ in range(1000)} if keys else {},
        "batch_stats": [{"batch_size": size, **row} for size in sizes],
        "memory_usage": [],
    }


def _statistics(entries: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model_stats": entries}, separators=(",", ":")).encode()


def pages() -> dict[str, bytes]:
    """Metrics pages by the name of their case."""
    labels = b",".join(b'l%d="v"' % number for number in range(PAGE_BYTES // 12))
    families = b"".join(b"f%d 1\n" % number for number in range(800_000))
    series = b"".join(
        b'nv_inference_count{model="model-%d",version="1"} 1\n' % number
        for number in range(150_000)
    )
    return {
        "page: labels": b"m{" + labels + b"} 1\n",
        "page: families": families[: families.rfind(b"\n", 0, PAGE_BYTES) + 1],
        "page: series": series[: series.rfind(b"\n", 0, PAGE_BYTES) + 1],
        "page: empty lines": b"\n" * PAGE_BYTES,
    }


class Backend:
    """Answers by path, with bodies made beforehand."""

    def __init__(self) -> None:
        self._keys = count()
        models = [f"model-{number:05}" for number in range(MODELS)]
        index = [{"name": name, "version": "1", "state": "READY"} for name in models]
        self._statistics = _statistics([model_entry(name) for name in models])
        self._index = json.dumps(index, separators=(",", ":")).encode()
        self.page = b""

    def body(self, path: bytes) -> bytes:
        if path == b"/metrics":
            return self.page
        if path == b"/v2/repository/index":
            return self._index
        if path == b"/v2/models/stats":
            return self._statistics
        if path == b"/v2/models/m/stats":
            return _statistics([model_entry("m", self._keys)])
        return b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path = line.split()[1]
                size = 0
                while (field := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = field.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                await reader.readexactly(size)
                body = self.body(path)
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
                writer.write(body)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def run_backend(connection: Connection) -> None:
    """A process with one backend; it is told the page that it shows."""

    async def serve() -> None:
        backend = Backend()
        server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        made = pages()
        while True:
            name = await asyncio.to_thread(connection.recv)
            backend.page = made.get(name, b"")
            connection.send(True)

    asyncio.run(serve())


# The clients


async def _get(port: int, path: str) -> int:
    """One request on a connection of its own; the size of its body. Cancelled, it is reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: lb\r\n\r\n".encode())
        return len((await reader.read()).partition(b"\r\n\r\n")[2])
    finally:
        writer.close()


async def _ask_live(port: int, stop: asyncio.Event) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took: list[float] = []
    while not stop.is_set():
        await asyncio.sleep(EVERY_S)
        asked_at = time.monotonic()
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: lb\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        took.append(time.monotonic() - asked_at)
    writer.close()
    return took


def run_good(port: int, connection: Connection) -> None:
    """A process with the good client. It ends when it is told to."""

    async def ask() -> list[float]:
        stop = asyncio.Event()
        asking = asyncio.create_task(_ask_live(port, stop))
        await asyncio.to_thread(connection.recv)
        stop.set()
        return await asking

    connection.send(asyncio.run(ask()))


class Case:
    """What runs beside the good client."""

    def __init__(self, http: int, metrics: int) -> None:
        self.http = http
        self.metrics = metrics
        self.answers = 0
        self.largest = 0

    async def _again(self, port: int, path: str, pause_s: float = 0.0) -> None:
        until = time.monotonic() + LASTS_S
        while time.monotonic() < until:
            self.largest = max(self.largest, await _get(port, path))
            self.answers += 1
            await asyncio.sleep(pause_s)

    async def nothing(self) -> None:
        await asyncio.sleep(LASTS_S / 2)

    async def scrape(self) -> None:
        await self._again(self.metrics, "/metrics", 1.1)

    async def views(self) -> None:
        await asyncio.gather(*(self._again(self.http, "/v2/models/stats") for _ in range(8)))

    async def abandoned(self) -> None:
        """Clients that leave after 50 ms."""
        until = time.monotonic() + LASTS_S
        while time.monotonic() < until:
            asked = [asyncio.create_task(_get(self.http, "/v2/models/stats")) for _ in range(8)]
            await asyncio.sleep(0.05)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            self.answers += 8

    async def keys(self) -> None:
        for _ in range(VIEWS):
            self.largest = max(self.largest, await _get(self.http, "/v2/models/m/stats"))
            self.answers += 1


CASES: dict[str, Callable[[Case], Awaitable[None]]] = {
    "idle": Case.nothing,
    **dict.fromkeys(pages(), Case.scrape),
    "views: 8 clients": Case.views,
    "views: abandoned": Case.abandoned,
    "keys that never repeat": Case.keys,
}


def quantile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def measure(name: str, play: Callable[[Case], Awaitable[None]], folder: Path) -> str:
    """One row of the table."""
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe() for _ in range(3)]
    backends = [spawn.Process(target=run_backend, args=(end[1],), daemon=True) for end in ends[:2]]
    for process in backends:
        process.start()
    ports = [end[0].recv() for end in ends[:2]]
    http, metrics = free_ports(2)
    config = {
        "listen": {
            "http": {"address": f"127.0.0.1:{http}"},
            "metrics": {"address": f"127.0.0.1:{metrics}"},
        },
        "backends": [
            {"name": f"b{at}", "http": f"127.0.0.1:{port}", "metrics": f"127.0.0.1:{port}"}
            for at, port in enumerate(ports)
        ],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    balancer = ChildProcess(
        (sys.executable, "-m", "lb", "serve", "--config", str(path)),
        log=folder / "serve.log",
        env=ENVIRONMENT,
    )
    try:
        wait_until(
            lambda: " serving " in balancer.log.read_text(), timeout_s=30.0, what="the start"
        )
        time.sleep(6.0)  # lists of models and first statistics are read meanwhile
        for end in ends[:1]:
            end[0].send(name)
            end[0].recv()
        good = spawn.Process(target=run_good, args=(http, ends[2][1]), daemon=True)
        good.start()
        time.sleep(1.0)
        return _beside(name, play, Case(http, metrics), balancer.pid, ends[2][0])
    finally:
        balancer.close()
        for process in backends:
            process.kill()


def _beside(
    name: str, play: Callable[[Case], Awaitable[None]], case: Case, pid: int, good: Connection
) -> str:
    process = psutil.Process(pid)
    rss = peak = process.memory_info().rss
    times = process.cpu_times()
    began = time.monotonic()

    async def run() -> None:
        nonlocal peak
        playing = asyncio.ensure_future(play(case))
        while not playing.done():
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.02)
        await playing

    asyncio.run(run())
    lasted = time.monotonic() - began
    after = process.cpu_times()
    good.send(True)
    took = sorted(good.recv())
    cpu_s = after.user + after.system - times.user - times.system
    figures = " ".join(f"{1000 * quantile(took, share):7.1f}" for share in (0.5, 0.99, 1.0))
    return (
        f"{name:24} {figures} {cpu_s:6.1f} of {lasted:4.1f} {rss / 2**20:6.0f} "
        f"{peak / 2**20:6.0f} {case.answers:7} {case.largest:9}"
    )


def main() -> None:
    """Measure the cases that are named, or all."""
    print(f"{'case':24}     p50     p99     max  CPU s         RSS    peak  answers    largest")
    for name, play in CASES.items():
        if not sys.argv[1:] or any(part in name for part in sys.argv[1:]):
            with tempfile.TemporaryDirectory() as folder:
                print(measure(name, play, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
