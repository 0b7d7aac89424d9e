"""Load of both protocols at once, by NVIDIA's asyncio clients, and what became of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

from tests.triton.target import Target
from tests.triton.tensors import milliseconds


@dataclass(frozen=True)
class Sample:
    """One finished request; times are of the monotonic clock."""

    protocol: str
    began: float
    ended: float
    server: str
    """Name of the Triton that answered, empty when none did."""
    error: str


class Load:
    """Clients that ask `sleeper` again as soon as they have an answer, until the block ends.

    They stop when their request under way is finished, so every request that began is a sample.
    """

    def __init__(self, target: Target, *, clients: int = 8, sleep_ms: int = 20) -> None:
        self._target = target
        self._clients = clients
        self._sleep_ms = sleep_ms
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self.samples: list[Sample] = []

    async def __aenter__(self) -> Load:
        self._http = httpaio.InferenceServerClient(self._target.http, conn_limit=self._clients)
        self._grpc = grpcaio.InferenceServerClient(self._target.grpc)
        for number in range(self._clients):
            ask = self.ask_http if number % 2 else self.ask_grpc
            self._tasks.append(asyncio.ensure_future(self._repeat(ask)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        if error:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)
        await self._http.close()
        await self._grpc.close()

    async def _repeat(self, ask: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        while not self._stopping:
            await ask(self._sleep_ms)

    async def ask_http(self, sleep_ms: int) -> None:
        """One request; never raises, the sample says what came of it."""
        await self._ask("http", self._http, milliseconds(httpclient, sleep_ms))

    async def ask_grpc(self, sleep_ms: int) -> None:
        """One request; never raises, the sample says what came of it."""
        await self._ask("grpc", self._grpc, milliseconds(grpcclient, sleep_ms))

    async def _ask(self, protocol: str, client: Any, inputs: list[Any]) -> None:
        began = time.monotonic()
        server = error = ""
        try:
            result = await client.infer("sleeper", inputs)
            server = result.as_numpy("SERVER")[0].decode()
        except (InferenceServerException, aiohttp.ClientError, OSError) as failure:
            error = str(failure) or repr(failure)
        self.samples.append(Sample(protocol, began, time.monotonic(), server, error))
        self._news.set()

    async def wait_for(
        self, count: int, which: Callable[[Sample], bool], *, timeout_s: float = 30.0
    ) -> None:
        """Wait until that many samples are of this kind; one waiter at a time."""
        async with asyncio.timeout(timeout_s):
            while sum(map(which, self.samples)) < count:
                self._news.clear()
                await self._news.wait()

    async def wait_for_more(self, count: int) -> None:
        """Wait for that many answers to requests that begin from now on, over each protocol."""
        now = time.monotonic()
        for protocol in ("http", "grpc"):
            await self.wait_for(
                count, lambda s, p=protocol: s.began >= now and s.protocol == p and not s.error
            )

    @property
    def failures(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.error]
