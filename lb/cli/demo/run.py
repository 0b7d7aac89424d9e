"""The demo as a whole: start everything, send requests, show how it goes, end everything."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import grpc

from lb.cli.demo.acts import ENDLESS, KEYS, ONCE, Acts, Timeline
from lb.cli.demo.balancer import (
    Listeners,
    change_backend,
    configuration,
    free_listeners,
    is_accepting,
    read_backends,
    serve_command,
    usual_listeners,
)
from lb.cli.demo.children import READY_S, Children, DemoError
from lb.cli.demo.load import Arrivals, RequestTally, grpc_infer, http_infer
from lb.cli.demo.table import addresses, comparison, redraw, speeds, table
from lb.cli.demo.tritons import SimulatedTritons
from lb.net.tasks import TaskOwner

RATE: Final = 30.0
"""Requests that arrive per second, half of them over either protocol. Both load balancers get all
of them, so the Tritons together have twice as many."""
REFRESH_S: Final = 0.5
REFRESH_PLAIN_S: Final = 10.0
"""Where the output is no terminal."""
POLL_S: Final = 0.05
TRY: Final = "triton-lb serve --backend HOST:8000 --backend HOST:8010"
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CONTROL_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


def run_demo(backends: int, once: bool) -> int:
    """Run the demo and return its exit code.

    Args:
        backends: how many simulated Tritons.
        once: end after half a minute, with 0 only if every answer was right; otherwise go on
            until Ctrl-C.
    """

    return asyncio.run(demonstrate(backends, ONCE if once else ENDLESS))


async def demonstrate(
    backends: int,
    timeline: Timeline,
    serve: Callable[[Path], Sequence[str]] = serve_command,
    find_listeners: Callable[[], Listeners] = usual_listeners,
) -> int:
    """Do what `run_demo` does.

    Args:
        backends: how many simulated Tritons.
        timeline: when things happen.
        serve: gives the command line of the load balancer, by its configuration file.
        find_listeners: says where the load balancer is to listen.
    """
    return await _Demo(backends, timeline, serve, find_listeners).run()


class _Demo:
    def __init__(
        self,
        backends: int,
        timeline: Timeline,
        serve: Callable[[Path], Sequence[str]],
        find_listeners: Callable[[], Listeners],
    ) -> None:
        self._backends = backends
        self._timeline = timeline
        self._serve = serve
        self._find_listeners = find_listeners
        self._tallies = (RequestTally("HTTP"), RequestTally("gRPC"))
        self._rival_tallies = (RequestTally("HTTP"), RequestTally("gRPC"))
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
        self._end(0 if self._is_clean and self._timeline.is_endless else 1)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail("stopped by a mistake of its own")  # which TaskOwner has logged

    @property
    def _is_clean(self) -> bool:
        return all(tally.is_clean for tally in self._tallies)

    # The demonstration

    async def _work(self, children: Children, folder: Path) -> None:
        try:
            tritons = SimulatedTritons(children, self._backends)
            listen, rival = await self._start(children, tritons, folder)
            async with (
                aiohttp.ClientSession(timeout=_CONTROL_TIMEOUT) as session,
                grpc.aio.insecure_channel(listen.grpc, options=_NO_PROXY) as channel,
                grpc.aio.insecure_channel(rival.grpc, options=_NO_PROXY) as rival_channel,
            ):
                for each in (listen, rival):
                    await _wait_until_accepting(session, each, children)
                http = (http_infer(session, listen.http), http_infer(session, rival.http))
                rpc = (grpc_infer(channel), grpc_infer(rival_channel))
                pairs = tuple(zip(self._tallies, self._rival_tallies, strict=True))
                arrivals = Arrivals(
                    [
                        tuple(zip(infers, tallies, strict=True))
                        for infers, tallies in zip((http, rpc), pairs, strict=True)
                    ],
                    Random(1),
                )
                print("\n".join(["", *addresses(listen), "", *speeds(tritons), ""]), flush=True)
                screen = _Screen(session, listen, tritons, self._tallies, self._rival_tallies)

                async def change(name: str, action: str) -> None:
                    await change_backend(session, listen, name, action)

                acts = Acts(tritons, self._tallies, change, screen.say)
                screen.acts = acts
                await self._perform(arrivals, acts, screen)
        except DemoError as error:
            self._fail(str(error))

    async def _start(
        self, children: Children, tritons: SimulatedTritons, folder: Path
    ) -> tuple[Listeners, Listeners]:
        """Start the Tritons, then the load balancer over them, and another with round robin."""
        print(f"triton-lb demo: starting {self._backends} simulated Tritons", flush=True)
        await tritons.start()
        listen, rival = self._find_listeners(), free_listeners()
        for name, where, policy in (
            ("the load balancer", listen, "least_loaded"),
            ("the load balancer with round robin", rival, "round_robin"),
        ):
            config = folder / f"{policy}.yaml"
            config.write_text(configuration(where, tritons.ports, policy))
            await children.start(name, *self._serve(config))
        return listen, rival

    async def _perform(self, arrivals: Arrivals, acts: Acts, screen: _Screen) -> None:
        """Send requests and let things happen; with --once, come to an end."""
        tasks = TaskOwner()
        timeline = self._timeline
        try:
            sending = tasks.spawn(arrivals.send(RATE, timeline.ends_s), name="demo: arrivals")
            if self._backends > 1:
                tasks.spawn(self._play(acts, timeline.acts_s), name="demo: acts")
            with keys(self._key_handler(acts, tasks)):
                while not sending.done():
                    await screen.draw()
                    await asyncio.wait((sending,), timeout=screen.refresh_s)
            sending.result()
        finally:
            await tasks.aclose()
        acts.close()
        await screen.finish()
        if self._is_clean:
            total = sum(tally.total for tally in self._tallies)
            print(f"\n  all {total} answers were right")
            print(f"  Try it on yours: {TRY}")
            self._end(0)
        else:
            self._fail("not every answer was right")

    async def _play(self, acts: Acts, times: Sequence[float]) -> None:
        try:
            await acts.play(times)
        except (DemoError, aiohttp.ClientError, TimeoutError) as error:
            self._fail(f"cannot go on: {error}")

    def _key_handler(self, acts: Acts, tasks: TaskOwner) -> Callable[[str], None]:
        by_key = {"k": acts.kill, "f": acts.freeze, "d": acts.drain, "r": acts.restore}

        async def do(act: Callable[[], Awaitable[None]]) -> None:
            try:
                await act()
            except (DemoError, aiohttp.ClientError, TimeoutError) as error:
                self._fail(f"cannot go on: {error}")

        def pressed(key: str) -> None:
            if act := by_key.get(key):
                acts.take_over()
                tasks.spawn(do(act), name=f"demo: key {key}")

        return pressed


class _Screen:
    """What the demo shows: a table that is drawn anew on a terminal, lines elsewhere."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        listen: Listeners,
        tritons: SimulatedTritons,
        tallies: Sequence[RequestTally],
        rival_tallies: Sequence[RequestTally],
    ) -> None:
        self._session = session
        self._listen = listen
        self._tritons = tritons
        self._tallies = tallies
        self._rival_tallies = rival_tallies
        self._is_terminal = sys.stdout.isatty()
        self._drawn = 0
        self.refresh_s = REFRESH_S if self._is_terminal else REFRESH_PLAIN_S
        self.acts: Acts | None = None

    def say(self, line: str) -> None:
        """Tell of an event, where no table shows it."""
        if not self._is_terminal:
            print(line, flush=True)

    async def draw(self) -> None:
        """Draw the table.

        Raises:
            DemoError: the admin API does not answer.
        """
        if self._is_terminal:
            acts = self.acts.lines() if self.acts is not None else []
            lines = [*await self._lines(), "", *acts, "", f"  {KEYS}"]
            width = shutil.get_terminal_size().columns
            print(redraw(lines, self._drawn, width), end="", flush=True)
            self._drawn = len(lines)
        elif self.acts is not None and self._tallies[0].total:
            print("\n".join(await self._lines()), flush=True)

    async def finish(self) -> None:
        """Draw the table for the last time."""
        if self._is_terminal:
            await self.draw()
        else:
            print("\n".join(["", *await self._lines()]), flush=True)

    async def _lines(self) -> list[str]:
        try:
            backends = await read_backends(self._session, self._listen)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"the admin API does not answer: {error!r}") from error
        return [
            *table(backends, self._tallies, self._tritons.fates),
            comparison(self._tallies, self._rival_tallies),
        ]


@contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Tell of keys that are pressed meanwhile, where somebody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(source)
    tty.setcbreak(source)
    loop.add_reader(source, lambda: pressed(os.read(source, 1).decode("ascii", "replace")))
    try:
        yield
    finally:
        loop.remove_reader(source)
        termios.tcsetattr(source, termios.TCSADRAIN, before)


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
