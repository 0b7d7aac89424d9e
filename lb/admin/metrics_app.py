"""The metrics port: our metrics and those of the backends on one page, and the life signs.

A page can be large (hundreds of backends) and is made on the loop that relays traffic, so it is
made in pieces of a millisecond or two, and the loop turns between them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from codecs import getincrementaldecoder
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from ssl import SSLContext
from typing import Final, NamedTuple
from weakref import WeakSet, ref

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample

from lb.admin.departure import let_go
from lb.domain.backend import Address
from lb.net.http_sessions import SteadyConnector
from lb.telemetry.catalogue import SCRAPE_CUTS, SCRAPE_FAILURES
from lb.telemetry.collector import Row, make_family
from lb.telemetry.exposition import STEP_BYTES, BackendPage, MergedPages
from lb.wire.memory_budget import MemoryBudget

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
    is_dead: bool = False
    """Nothing of the backend answers, so its page is not asked for: hundreds of connections that
    are refused take as long as our own page."""


Targets = Callable[[], Sequence[Target]]
"""The backends that have a metrics port."""
Encoder = Callable[["_Slice"], bytes]

SCRAPE_DEADLINE_S: Final = 0.5
"""Prometheus gives up after 10 s by default, perf_analyzer asks every second: one backend that
hangs must cost neither of them its answer."""
CONCURRENT_SCRAPES: Final = 16
"""Hundreds at once would spend the deadline of each on the work for the others, and what comes at
the same time is handled in one iteration of the loop: about half a millisecond for each."""
CACHE_S: Final = 1.0
MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Of one page. A Triton with a thousand models writes 2 MB."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all pages together: those of 30 Tritons with a thousand models each."""
_SAMPLES_PER_PIECE: Final = 250
"""About 1.5 ms of encoding."""
_FAMILIES_PER_PIECE: Final = 1000
_BLOCK_BYTES: Final = 64 * 1024
"""What is written of an answer in one loop iteration."""
_SEND_S: Final = 10.0
"""Prometheus gives up after this time by default. A slower reader is cut off, since it holds the
pages that it reads."""
_MAX_ROUNDS: Final = 2
"""Rounds of pages in memory: one that slow readers still read, and the last one. While both are
read, no newer one is made."""
_SHARE: Final = 0.25
"""The part of the time that goes into making pages at most, while some are asked for."""
_SAVED_S: Final = 2.0
"""Time for pages that is saved up while none are asked for: so usual readers do not wait."""
_PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_END_OF_OPENMETRICS: Final = b"# EOF\n"
_TYPE_LINE: Final = re.compile(rb"^# TYPE (\S+) ", re.MULTILINE)


class _BackendPage:
    """What came of one page, and what was made of it. A holder on the account of its round."""

    def __init__(self, target: Target, memory_budget: MemoryBudget) -> None:
        self.target = target
        self.held = 0
        self.labelled = BackendPage(target.name)
        self.why_cut = ""
        """Why some of it is not shown; empty where all is."""
        self._memory_budget = memory_budget
        self._parts: deque[bytes] = deque()

    def evict(self) -> None:
        """See `lb.wire.memory_budget.Holder`."""
        self.clear()
        self.why_cut = f"all pages together are longer than {MAX_BYTES} bytes"

    @property
    def charged_to(self) -> None:
        """See `lb.wire.memory_budget.Holder`: it is a backend's."""
        return None

    def clear(self) -> None:
        """Show nothing of it."""
        self._parts.clear()
        self.labelled = BackendPage(self.target.name)
        self._memory_budget.release(self, self.held)

    def keep(self, part: bytes) -> bool:
        """Take a part of the page. False when no more is wanted."""
        if self.why_cut or not self._memory_budget.take(self, len(part)):
            return False
        self._parts.append(part)
        if self.held > MAX_PAGE_BYTES:
            self.why_cut = f"the page is longer than {MAX_PAGE_BYTES} bytes"
        return not self.why_cut

    async def read(self) -> None:
        """Put the label into its samples, a step in each loop iteration.

        Raises:
            UnicodeDecodeError: it is no text. A scraper refuses a page that is not.
        """
        decoder = getincrementaldecoder("utf-8")()
        while self._parts and not self.labelled.is_full:
            part = self._parts.popleft()
            for begin in range(0, len(part), STEP_BYTES):
                text = part[begin : begin + STEP_BYTES]
                decoder.decode(text)
                size = self.labelled.size
                for _ in self.labelled.read(text):
                    await asyncio.sleep(0)
                if not self._memory_budget.take(self, self.labelled.size - size):
                    return
            self._memory_budget.release(self, len(part))
        if not self.why_cut:
            self.labelled.finish()  # else the last line may be a part of one
            decoder.decode(b"", final=True)
        if self.labelled.left_out:
            self.why_cut = "the page has too many lines or families, or too long lines"
        self._memory_budget.release(self, sum(map(len, self._parts)))
        self._parts.clear()


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
        self._rounds: WeakSet[MergedPages] = WeakSet()
        """Those that somebody reads still."""
        self._read_at = float("-inf")
        self._failures: Counter[str] = Counter()
        self._failing: set[str] = set()
        self._cuts: Counter[str] = Counter()
        self._cut: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        """Failures as a `prometheus-client` collector; those of backends that left are gone."""
        yield make_family(SCRAPE_FAILURES, lambda: self._rows(self._failures))
        yield make_family(SCRAPE_CUTS, lambda: self._rows(self._cuts))

    def _rows(self, counts: Counter[str]) -> Iterator[Row]:
        for target in self._targets():
            yield (target.name,), counts[target.name]

    async def read(self) -> MergedPages:
        """All pages merged, at most `cache_s` seconds old. Concurrent callers share one round."""
        async with self._lock:
            now = asyncio.get_running_loop().time
            if now() - self._read_at >= self._cache_s and self._let_go():
                self._pages = await self._read_all()
                self._rounds.add(self._pages)
                self._read_at = now()
            return self._pages

    def _let_go(self) -> bool:
        """Make room for another round. False when there is none, because of slow readers."""
        last = ref(self._pages)
        self._pages = MergedPages()
        kept = last()
        if kept is not None and len(self._rounds) >= _MAX_ROUNDS:
            self._pages = kept
            return False
        return True

    async def _read_all(self) -> MergedPages:
        targets = self._targets()
        self._forget_others({target.name for target in targets})
        memory_budget = MemoryBudget(MAX_BYTES)
        reads = []
        async with asyncio.TaskGroup() as group:
            for target in targets:
                if target.is_dead:
                    continue
                reads.append(group.create_task(self._read_one(_BackendPage(target, memory_budget))))
                await asyncio.sleep(0)  # to begin one takes half a millisecond
        pages = [page for read in reads if (page := read.result()) is not None]
        for page in pages:
            try:
                await page.read()
            except UnicodeDecodeError as error:
                page.clear()
                self._failed(page.target, error)
        merged = MergedPages()
        for page in pages:
            self._note_cut(page)
            merged.add(page.labelled)
            await asyncio.sleep(0)
        return merged

    def _forget_others(self, names: set[str]) -> None:
        self._failing &= names
        self._cut &= names
        for counts in (self._failures, self._cuts):
            for name in counts.keys() - names:
                del counts[name]

    async def _read_one(self, page: _BackendPage) -> _BackendPage | None:
        """Fill the page of one backend; None, and counted, when there is none."""
        name = page.target.name
        try:
            async with self._slots:
                await self._get(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            page.clear()
            self._failed(page.target, error)
            return None
        if name in self._failing:
            self._failing.discard(name)
            _log.info("metrics of a backend can be read again", extra={"backend": name})
        return page

    def _failed(self, target: Target, error: Exception) -> None:
        self._failures[target.name] += 1
        if target.name not in self._failing:
            self._failing.add(target.name)
            _log.warning(
                "metrics of a backend cannot be read",
                extra={
                    "backend": target.name,
                    "address": target.address,
                    "error": _describe(error),
                },
            )

    def _note_cut(self, page: _BackendPage) -> None:
        """Count and log a page that is not shown whole."""
        name = page.target.name
        if not page.why_cut:
            self._cut.discard(name)
            return
        self._cuts[name] += 1
        if name not in self._cut:
            self._cut.add(name)
            fields = {"backend": name, "address": page.target.address, "why": page.why_cut}
            _log.warning("metrics of a backend are not shown whole", extra=fields)

    async def _get(self, page: _BackendPage) -> None:
        """Read one page.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: no answer, or not one with status 200.
            ValueError: another status.
        """
        target = page.target
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
                if not page.keep(chunk):
                    return


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no complete answer within {SCRAPE_DEADLINE_S:g}s"
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


class _Page(NamedTuple):
    """A page as it is sent."""

    pieces: list[bytes | bytearray]
    source: MergedPages | None = None
    """What the pieces are of: as long as somebody has it, it counts as a round in memory."""


class _PageMaker:
    """Makes one page at a time, for all who wait for it.

    Who asks while a page is made gets the next one, which is no older than the question. Making
    them takes a part of the time at most, so that whoever asks without end slows down others who
    ask, and hardly any request.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._made: dict[str, tuple[float, _Page]] = {}
        """By kind: when it was begun, and the page. Only while somebody waits."""
        self._saved_s = _SAVED_S
        """Time for making pages, up to `_saved_at`."""
        self._saved_at = 0.0

    async def get(self, kind: str, make: Callable[[], Awaitable[_Page]]) -> _Page:
        """Return a page that was begun after this was called.

        Args:
            kind: pages of one kind are the same.
            make: makes one.
        """
        now = asyncio.get_running_loop().time
        asked_at = now()
        self._waiting += 1
        try:
            async with self._lock:
                begun_at, page = self._made.get(kind, (-inf, None))
                if page is None or begun_at < asked_at:
                    await self._wait_for_time(now())
                    begun_at = now()
                    try:
                        page = await make()
                    finally:
                        self._saved_s -= now() - begun_at
                    self._made[kind] = begun_at, page
                return page
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._made.clear()

    async def _wait_for_time(self, now: float) -> None:
        self._saved_s = min(_SAVED_S, self._saved_s + _SHARE * (now - self._saved_at))
        self._saved_at = now
        if self._saved_s < 0.0:
            await asyncio.sleep(-self._saved_s / _SHARE)


class _Handlers:
    """The handlers of the metrics port."""

    def __init__(
        self, registry: CollectorRegistry, is_complete: Callable[[], Awaitable[bool]]
    ) -> None:
        self._registry = registry
        self._is_complete = is_complete
        self._maker = _PageMaker()
        self.backends: BackendPages | None = None

    async def show_all(self, request: web.Request) -> web.StreamResponse:
        """Ours and theirs; in the plain text format, because theirs is in no other."""
        backends = self.backends
        if backends is None:
            return await self.show_own(request)
        if not await self._is_complete():
            return _incomplete()
        page = await self._maker.get("all", partial(self._all, backends))
        return await _send(request, page)

    async def show_own(self, request: web.Request) -> web.StreamResponse:
        """Ours alone, in the format that the client asks for."""
        if not await self._is_complete():
            return _incomplete()
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        page = await self._maker.get(content_type, partial(self._own, encoder, content_type))
        return await _send(request, page, content_type)

    async def _all(self, backends: BackendPages) -> _Page:
        source = await backends.read()
        theirs = source.families
        ours: set[bytes] = set()
        page: list[bytes | bytearray] = []
        for family in self._registry.collect():
            pieces = await _encode(family, generate_latest)
            page += pieces
            match = _TYPE_LINE.search(pieces[0])
            if match is not None and match[1] in theirs:
                ours.add(match[1])
                page += theirs[match[1]].samples
        for at, (name, lines) in enumerate(theirs.items()):
            if name not in ours:
                page += lines.lines()
            if at % _FAMILIES_PER_PIECE == 0:
                await asyncio.sleep(0)
        return _Page(page, source)

    async def _own(self, encoder: Encoder, content_type: str) -> _Page:
        page: list[bytes | bytearray] = []
        for family in self._registry.collect():
            page += await _encode(family, encoder)
        if content_type.startswith("application/openmetrics-text"):
            page.append(_END_OF_OPENMETRICS)
        return _Page(page)


async def _send(
    request: web.Request, page: _Page, content_type: str = _PLAIN_TEXT
) -> web.StreamResponse:
    """Send a page, as fast as its reader takes it."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    response.content_length = sum(map(len, page.pieces))
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    try:
        async with asyncio.timeout(_SEND_S):
            for block in _blocks(page.pieces):
                await response.write(block)
                await asyncio.sleep(0)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


def _incomplete() -> web.Response:
    """A failed scrape. Counters that lack a part would look as if they had been reset."""
    return web.Response(text="not all that was counted is known yet\n", status=503)


def _blocks(page: list[bytes | bytearray]) -> Iterator[bytes]:
    """The page in blocks of about the same length."""
    block = bytearray()
    for piece in page:
        begin = 0
        while len(piece) - begin > _BLOCK_BYTES - len(block):
            end = begin + _BLOCK_BYTES - len(block)
            block += memoryview(piece)[begin:end]
            begin = end
            yield bytes(block)
            block.clear()
        block += memoryview(piece)[begin:]
    if block:
        yield bytes(block)


def _life_sign(is_good: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        if is_good():
            return web.Response(text="ok\n")
        return web.Response(text="not ok\n", status=503)

    return answer


async def nothing_lacks() -> bool:
    """Who counts alone knows all."""
    return True


def make_metrics_app(
    registry: CollectorRegistry,
    *,
    is_ready: Callable[[], bool],
    targets: Targets,
    include_backends: bool,
    is_live: Callable[[], bool] = lambda: True,
    is_complete: Callable[[], Awaitable[bool]] = nothing_lacks,
) -> web.Application:
    """The application of the metrics port: `/metrics`, `/metrics/own`, `/livez`, `/readyz`.

    Args:
        registry: our metrics.
        is_ready: whether we take requests: decides `/readyz`.
        targets: asked at every page.
        include_backends: whether `/metrics` shows the metrics of the backends too.
        is_live: whether the process should go on; decides `/livez`.
        is_complete: whether our counters have all that was counted; may wait for it.
    """
    handlers = _Handlers(registry, is_complete)

    async def session(_: web.Application) -> AsyncIterator[None]:
        async with _make_session() as client:
            handlers.backends = BackendPages(targets, client)
            registry.register(handlers.backends)
            yield
            registry.unregister(handlers.backends)
            handlers.backends = None

    app = web.Application(middlewares=[let_go])
    if include_backends:
        app.cleanup_ctx.append(session)
    for path in ("/metrics", "/metrics/"):  # Triton answers both
        app.router.add_get(path, handlers.show_all)
    app.router.add_get("/metrics/own", handlers.show_own)
    app.router.add_get("/livez", _life_sign(is_live))
    app.router.add_get("/readyz", _life_sign(is_ready))
    return app


def _make_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # A fresh connection each time: an idle one may belong to a server that is shutting down.
        connector=SteadyConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=SCRAPE_DEADLINE_S),
        headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
