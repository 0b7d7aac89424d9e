"""The demo as a whole: start everything, send requests, show how it goes, end everything."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import grpc

from lb.cli.demo.balancer import (
    Listeners,
    configuration,
    free_listeners,
    is_accepting,
    read_backends,
    serve_command,
)
from lb.cli.demo.children import READY_S, Children, DemoError
from lb.cli.demo.load import Infer, Tally, grpc_infer, http_infer, send
from lb.cli.demo.table import addresses, redraw, table
from lb.net.tasks import TaskOwner
from lb.simulator.process import Ports

SPEEDS: Final = (1.0, 0.5, 2.0)
"""Tritons of different speed show that the fast ones get more."""
WORKERS: Final = 4
"""Requests in flight per protocol."""
ONCE_REQUESTS: Final = 300
"""Per protocol, with --once."""
ONCE_S: Final = 30.0
PAUSE_S: Final = 0.02
"""Between two requests of a worker: a live table, not a stress test."""
REFRESH_S: Final = 0.5
REFRESH_PLAIN_S: Final = 10.0
"""Where the output is no terminal."""
POLL_S: Final = 0.05
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CONTROL_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


def run_demo(backends: int, once: bool) -> int:
    """Run the demo and return its exit code.

    Args:
        backends: how many simulated Tritons.
        once: end after some hundred requests, with 0 only if every answer was right; otherwise
            go on until Ctrl-C.
    """

    return asyncio.run(demonstrate(backends, once))


async def demonstrate(
    backends: int, once: bool, serve: Callable[[Path], Sequence[str]] = serve_command
) -> int:
    """Do what `run_demo` does; `serve` gives the command line of the load balancer."""
    return await _Demo(backends, once, serve).run()


class _Demo:
    def __init__(self, backends: int, once: bool, serve: Callable[[Path], Sequence[str]]) -> None:
        self._backends = backends
        self._once = once
        self._serve = serve
        self._tallies = (Tally("HTTP"), Tally("gRPC"))
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Run until the requests are done, a signal comes or a child dies; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop)
        try:
            return await self._run()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        tasks = TaskOwner()
        with tempfile.TemporaryDirectory(prefix="triton-lb-demo-") as folder:
            async with Children(Path(folder, "children.log"), self._fail) as children:
                work = tasks.spawn(self._work(children, Path(folder)), name="demo")
                work.add_done_callback(self._work_done)
                try:
                    return await self._ended
                finally:
                    await tasks.aclose()

    # Ways to end

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _fail(self, problem: str) -> None:
        if not self._ended.done():
            print(f"triton-lb demo: {problem}", file=sys.stderr)
        self._end(1)

    def _stop(self) -> None:
        """End on a signal, which is an error only where the demo would have ended by itself."""
        self._end(0 if self._is_clean and not self._once else 1)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail("stopped by a mistake of its own")  # which TaskOwner has logged

    @property
    def _is_clean(self) -> bool:
        return all(tally.is_clean for tally in self._tallies)

    # The demonstration

    async def _work(self, children: Children, folder: Path) -> None:
        try:
            listen = await self._start(children, folder)
            async with (
                aiohttp.ClientSession(timeout=_CONTROL_TIMEOUT) as session,
                grpc.aio.insecure_channel(listen.grpc, options=_NO_PROXY) as channel,
            ):
                await _wait_until_accepting(session, listen, children)
                infers = (http_infer(session, listen.http), grpc_infer(channel))
                print("\n".join(["", *addresses(listen), ""]), flush=True)
                if self._once:
                    await self._send_some(infers)
                    await self._report(session, listen)
                else:
                    await self._send_and_show(infers, session, listen)
        except DemoError as error:
            self._fail(str(error))

    async def _start(self, children: Children, folder: Path) -> Listeners:
        """Start the Tritons, then the load balancer over them."""
        print(f"triton-lb demo: starting {self._backends} simulated Tritons", flush=True)
        speeds = itertools.cycle(SPEEDS)
        started = {}
        for number in range(self._backends):
            speed = str(next(speeds))
            command = (sys.executable, "-m", "lb.simulator", "--speed", speed)
            name = f"triton-{number}"
            started[name] = await children.start(name, *command, announces=True)
        backends = {
            name: Ports.from_json(await children.first_line(name, process))
            for name, process in started.items()
        }
        listen = free_listeners()
        config = folder / "triton-lb.yaml"
        config.write_text(configuration(listen, backends))
        await children.start("the load balancer", *self._serve(config))
        return listen

    async def _send_some(self, infers: Sequence[Infer]) -> None:
        """Send what --once sends.

        Raises:
            DemoError: it took too long.
        """
        try:
            async with asyncio.timeout(ONCE_S):
                await asyncio.gather(*self._workers(infers, ONCE_REQUESTS // WORKERS))
        except TimeoutError:
            raise DemoError(f"the requests were not answered within {ONCE_S:.0f} s") from None

    async def _report(self, session: aiohttp.ClientSession, listen: Listeners) -> None:
        """Print the table once, and end as the answers were."""
        print("\n".join(await self._lines(session, listen)), flush=True)
        if self._is_clean:
            total = sum(tally.total for tally in self._tallies)
            print(f"\n  all {total} answers were right")
            self._end(0)
        else:
            self._fail("not every answer was right")

    async def _send_and_show(
        self, infers: Sequence[Infer], session: aiohttp.ClientSession, listen: Listeners
    ) -> None:
        """Send without end and draw the table again and again."""
        senders = TaskOwner()
        for worker in self._workers(infers, None, PAUSE_S):
            senders.spawn(worker, name="demo: send")
        drawn = 0
        try:
            while True:
                await asyncio.sleep(REFRESH_S if sys.stdout.isatty() else REFRESH_PLAIN_S)
                lines = [*await self._lines(session, listen), "", "  Ctrl-C ends it."]
                if sys.stdout.isatty():
                    width = shutil.get_terminal_size().columns
                    print(redraw(lines, drawn, width), end="", flush=True)
                    drawn = len(lines)
                else:
                    print("\n".join(lines), flush=True)
        finally:
            await senders.aclose()

    def _workers(
        self, infers: Sequence[Infer], count: int | None, pause_s: float = 0.0
    ) -> Iterator[Coroutine[None, None, None]]:
        for infer, tally in zip(infers, self._tallies, strict=True):
            for number in range(WORKERS):
                yield send(infer, tally, Random(number), count, pause_s)

    async def _lines(self, session: aiohttp.ClientSession, listen: Listeners) -> list[str]:
        try:
            backends = await read_backends(session, listen)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"the admin API does not answer: {error!r}") from error
        return table(backends, self._tallies)


async def _wait_until_accepting(
    session: aiohttp.ClientSession, listen: Listeners, children: Children
) -> None:
    try:
        async with asyncio.timeout(READY_S):
            while True:
                if await is_accepting(session, listen):
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise DemoError(children.with_log("the load balancer did not start")) from None
