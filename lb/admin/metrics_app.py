"""The metrics port: our metrics and those of the backends on one page, and the life signs.

A page can be large (hundreds of backends) and is made on the loop that relays traffic, so it is
made in pieces of a millisecond or two, and the loop turns between them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from ssl import SSLContext
from typing import Final

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample

from lb.domain.backend import Address
from lb.telemetry.catalogue import SCRAPE_FAILURES
from lb.telemetry.collector import Row, make_family
from lb.telemetry.exposition import MergedPages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """The metrics port of one backend."""

    name: str
    address: Address
    context: SSLContext | None = None
    """None where it is plain."""
    server_name: str = ""
    """What its certificate must say."""


Targets = Callable[[], Sequence[Target]]
"""The backends that have a metrics port."""
Encoder = Callable[["_Slice"], bytes]

SCRAPE_DEADLINE_S: Final = 0.5
"""Prometheus gives up after 10 s by default, perf_analyzer asks every second: one backend that
hangs must cost neither of them its answer."""
CONCURRENT_SCRAPES: Final = 16
"""Hundreds at once would spend the deadline of each on the work for the others, and what comes at
the same time is handled in one turn of the loop: about half a millisecond for each."""
CACHE_S: Final = 1.0
MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
"""A Triton with a thousand models writes 2 MB."""
_SAMPLES_PER_PIECE: Final = 250
"""About 1.5 ms of encoding."""
_LINES_PER_PIECE: Final = 1000
"""About 1.5 ms of adding labels."""
_PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_END_OF_OPENMETRICS: Final = b"# EOF\n"
_TYPE_LINE: Final = re.compile(rb"^# TYPE (\S+) ", re.MULTILINE)


class BackendPages:
    """The metrics pages of all backends, read at the same time and kept for a second."""

    def __init__(
        self, targets: Targets, session: aiohttp.ClientSession, *, cache_s: float = CACHE_S
    ) -> None:
        self._targets = targets
        self._session = session
        self._cache_s = cache_s
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(CONCURRENT_SCRAPES)
        self._pages = MergedPages()
        self._read_at = float("-inf")
        self._failures: dict[str, int] = {}
        self._failing: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        """Failures as a `prometheus-client` collector; those of backends that left are gone."""
        yield make_family(SCRAPE_FAILURES, self._rows)

    def _rows(self) -> Iterator[Row]:
        for target in self._targets():
            yield (target.name,), self._failures.get(target.name, 0)

    async def read(self) -> MergedPages:
        """All pages merged, at most `cache_s` seconds old. Concurrent callers share one round."""
        async with self._lock:
            now = asyncio.get_running_loop().time
            if now() - self._read_at >= self._cache_s:
                self._pages = await self._read_all()
                self._read_at = now()
            return self._pages

    async def _read_all(self) -> MergedPages:
        targets = self._targets()
        self._forget_others({target.name for target in targets})
        reads = []
        async with asyncio.TaskGroup() as group:
            for target in targets:
                reads.append(group.create_task(self._read_one(target)))
                await asyncio.sleep(0)  # to begin one takes half a millisecond
        pages = [read.result() for read in reads]
        merged = MergedPages()
        for target, page in zip(targets, pages, strict=True):
            lines = iter(page.split(b"\n"))
            while piece := list(islice(lines, _LINES_PER_PIECE)):
                merged.add(piece, target.name)
                await asyncio.sleep(0)
        return merged

    def _forget_others(self, names: set[str]) -> None:
        self._failing &= names
        for name in self._failures.keys() - names:
            del self._failures[name]

    async def _read_one(self, target: Target) -> bytes:
        """The page of one backend; empty, and counted, when there is none."""
        name = target.name
        try:
            async with self._slots:
                page = await self._get(target)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._failures[name] = self._failures.get(name, 0) + 1
            if name not in self._failing:
                self._failing.add(name)
                _log.warning(
                    "metrics of a backend cannot be read",
                    extra={"backend": name, "address": target.address, "error": _describe(error)},
                )
            return b""
        if name in self._failing:
            self._failing.discard(name)
            _log.info("metrics of a backend can be read again", extra={"backend": name})
        return page

    async def _get(self, target: Target) -> bytes:
        """One page.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: no answer, or not one with status 200.
            ValueError: the answer is no text, or too long.
        """
        page = bytearray()
        context = target.context
        async with self._session.get(
            f"{'http' if context is None else 'https'}://{target.address}/metrics",
            allow_redirects=False,
            ssl=context or True,
            server_hostname=target.server_name or None,
        ) as response:
            if response.status != 200:
                raise ValueError(f"HTTP status {response.status}")
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > MAX_PAGE_BYTES:
                    raise ValueError(f"page is longer than {MAX_PAGE_BYTES} bytes")
        page.decode()  # a scraper refuses a page that is not UTF-8
        return bytes(page)


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no complete answer within {SCRAPE_DEADLINE_S} s"
    if isinstance(error, UnicodeDecodeError):
        return "page is not UTF-8"
    return str(error) or type(error).__name__


class _Slice:
    """Some samples of one family, as something that an encoder can collect from."""

    def __init__(self, family: Metric, samples: list[Sample]) -> None:
        self._piece = Metric(family.name, family.documentation, family.type, family.unit)
        self._piece.samples = samples

    def collect(self) -> Iterable[Metric]:
        return (self._piece,)


async def _encode(family: Metric, encoder: Encoder) -> list[bytes]:
    """One family as pieces of a page; the first begins with its HELP and TYPE."""
    samples = iter(family.samples)
    pieces: list[bytes] = []
    while (batch := list(islice(samples, _SAMPLES_PER_PIECE))) or not pieces:
        piece = encoder(_Slice(family, batch)).removesuffix(_END_OF_OPENMETRICS)
        while pieces and piece.startswith(b"#"):
            piece = piece.partition(b"\n")[2]
        pieces.append(piece)
        await asyncio.sleep(0)
    return pieces


class _Pages:
    """The handlers of the metrics port."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.backends: BackendPages | None = None

    async def show_all(self, request: web.Request) -> web.Response:
        """Ours and theirs; in the plain text format, because theirs is in no other."""
        if self.backends is None:
            return await self.show_own(request)
        theirs = (await self.backends.read()).families
        ours: set[bytes] = set()
        page: list[bytes] = []
        for family in self._registry.collect():
            pieces = await _encode(family, generate_latest)
            page += pieces
            match = _TYPE_LINE.search(pieces[0])
            if match is not None and match[1] in theirs:
                ours.add(match[1])
                page += theirs[match[1]].samples
        for name, lines in theirs.items():
            if name not in ours:
                page += lines.lines()
        return _page(page, _PLAIN_TEXT)

    async def show_own(self, request: web.Request) -> web.Response:
        """Ours alone, in the format that the client asks for."""
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        page: list[bytes] = []
        for family in self._registry.collect():
            page += await _encode(family, encoder)
        if content_type.startswith("application/openmetrics-text"):
            page.append(_END_OF_OPENMETRICS)
        return _page(page, content_type)


def _page(pieces: list[bytes], content_type: str) -> web.Response:
    return web.Response(body=b"".join(pieces), headers={"Content-Type": content_type})


def _life_sign(is_good: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        if is_good():
            return web.Response(text="ok\n")
        return web.Response(text="not ok\n", status=503)

    return answer


def make_metrics_app(
    registry: CollectorRegistry,
    *,
    is_ready: Callable[[], bool],
    targets: Targets,
    include_backends: bool,
    is_live: Callable[[], bool] = lambda: True,
) -> web.Application:
    """The application of the metrics port: `/metrics`, `/metrics/own`, `/livez`, `/readyz`.

    Args:
        registry: our metrics.
        is_ready: whether we take requests: decides `/readyz`.
        targets: asked at every page.
        include_backends: whether `/metrics` shows the metrics of the backends too.
        is_live: whether the process should go on; decides `/livez`.
    """
    pages = _Pages(registry)

    async def session(_: web.Application) -> AsyncIterator[None]:
        async with _make_session() as client:
            pages.backends = BackendPages(targets, client)
            registry.register(pages.backends)
            yield
            registry.unregister(pages.backends)
            pages.backends = None

    app = web.Application()
    if include_backends:
        app.cleanup_ctx.append(session)
    for path in ("/metrics", "/metrics/"):  # Triton answers both
        app.router.add_get(path, pages.show_all)
    app.router.add_get("/metrics/own", pages.show_own)
    app.router.add_get("/livez", _life_sign(is_live))
    app.router.add_get("/readyz", _life_sign(is_ready))
    return app


def _make_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # A fresh connection each time: an idle one may belong to a server that is shutting down.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=SCRAPE_DEADLINE_S),
        headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
