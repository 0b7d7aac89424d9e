"""Sends spans to a collector: OTLP over HTTP, in a task of its own.

Whatever the collector does, requests are not affected: spans wait in a bounded queue, and what does
not fit, or is refused for good, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from math import inf
from random import Random
from typing import Final

import aiohttp

from lb.telemetry.export_options import ExportOptions
from lb.telemetry.otlp import SpanEncoder, encode_request, encode_resource, rejected_spans
from lb.telemetry.spans import QUEUE_FULL, Record, SpanQueue, spans_of
from lb.wire.protobuf import ProtobufError

_log = logging.getLogger(__name__)

BATCH: Final = 256
"""Records in one request at most: about 512 spans, as the SDKs of OpenTelemetry by default."""
INTERVAL_S: Final = 1.0
"""Between two requests, unless a batch is full."""
_AT_ONCE: Final = 8
"""Records that are encoded in one iteration of the event loop: about 0.5 ms."""
_REST_S: Final = 0.002
"""Until the next ones are encoded: requests have four fifths of the time, however many are traced.
About 6,000 spans a second can be sent."""
_COMPRESSED_AT_ONCE: Final = 64 * 1024
"""Bytes that are compressed in one iteration of the event loop: about 0.5 ms."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""For `zlib`: with the header of gzip."""
_RETRIED: Final = frozenset({429, 502, 503, 504})
"""Statuses after which a batch is sent again, by the specification of OTLP."""
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
"""Between two tries at a batch, also where the collector asks for more."""
_MAX_TRIES: Final = 6
"""A collector that is gone for a minute loses what it was to get."""
_LOG_EVERY_S: Final = 60.0
_FLUSH_S: Final = 5.0
"""For what is left when the process ends."""
_ANSWER_BYTES: Final = 64 * 1024
REJECTED: Final = "rejected"
FAILED: Final = "failed"


class _Refused(Exception):
    """The collector does not take a batch."""

    def __init__(self, text: str, *, is_final: bool, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.wait_s = wait_s


class SpanExporter:
    """Sends what is in a `SpanQueue`, and tells of failures once a minute."""

    def __init__(
        self,
        spans: SpanQueue,
        rng: Random,
        *,
        interval_s: float = INTERVAL_S,
        first_wait_s: float = _FIRST_WAIT_S,
        connector: Callable[[], aiohttp.BaseConnector] = aiohttp.TCPConnector,
    ) -> None:
        """
        Args:
            spans: to be sent.
            rng: spreads tries.
            interval_s: between two requests.
            first_wait_s: before the second try at a batch; it doubles each time.
            connector: makes the connections of a session.
        """
        self._spans = spans
        self._rng = rng
        self._interval_s = interval_s
        self._first_wait_s = first_wait_s
        self._connector = connector
        self.options = ExportOptions()
        self.on_interval: Callable[[], None] = lambda: None
        """Called between two requests."""
        self._changed = asyncio.Event()
        """There are other options."""
        self._logged_at = -inf
        self._unlogged = 0
        self._told_of = 0
        """Spans that did not fit into the queue, as far as that was told."""

    def configure(self, options: ExportOptions) -> None:
        """Send to another place from now on; what waits goes there, too."""
        if options == self.options:
            return
        self.options = options
        self._changed.set()

    async def run(self) -> None:
        """Send spans for as long as the process lives."""
        while True:
            self._changed.clear()
            options = self.options
            if not options.endpoint:
                self._spans.waiting.clear()
                await self._changed.wait()
                continue
            async with self._session(options) as session:
                while not self._changed.is_set():
                    if len(self._spans.waiting) < BATCH:
                        await self._pause(self._interval_s)
                    self.on_interval()
                    if self._spans.waiting and not self._changed.is_set():
                        await self._send_batch(session, options, _MAX_TRIES)
                    self._tell_of_full_queue()

    async def flush(self) -> None:
        """Send what is left, for a few seconds at most. `run` has ended."""
        options = self.options
        if not options.endpoint or not self._spans.waiting:
            return
        try:
            async with asyncio.timeout(_FLUSH_S), self._session(options) as session:
                while self._spans.waiting:
                    await self._send_batch(session, options, 1)
        except TimeoutError:
            _log.warning("spans are left", extra={"count": len(self._spans.waiting)})

    async def _pause(self, time_s: float) -> None:
        """Wait, unless there are other options."""
        try:
            async with asyncio.timeout(time_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send_batch(
        self, session: aiohttp.ClientSession, options: ExportOptions, tries: int
    ) -> None:
        """Send the first spans that wait; they are gone then, whether they were taken or not.

        Args:
            session: with the collector of `options`: no other one may see its credentials.
            options: where they go, and in which form.
            tries: how often to try.
        """
        waiting = self._spans.waiting
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        encoded = await _encode(batch)
        body = encode_request(encode_resource(options.resource), options.version, encoded)
        fields = {"content-type": "application/x-protobuf"}
        if options.is_compressed:
            body = await _compressed(body)
            fields["content-encoding"] = "gzip"
        wait_s = self._first_wait_s
        for number in range(tries):
            try:
                rejected = await self._send(session, options.endpoint, body, fields)
            except _Refused as refusal:
                if refusal.is_final or number + 1 == tries or self._changed.is_set():
                    why = REJECTED if refusal.is_final else FAILED
                    self._drop(len(encoded), why, str(refusal))
                    return
                self._tell(str(refusal), 0)
                await self._pause(
                    min(refusal.wait_s or wait_s * self._rng.uniform(0.5, 1.0), _LONGEST_WAIT_S)
                )
                wait_s *= 2
            else:
                self._spans.exported += len(encoded) - rejected
                if rejected:
                    self._drop(rejected, REJECTED, "the collector rejected spans")
                return

    async def _send(
        self, session: aiohttp.ClientSession, endpoint: str, body: bytes, fields: Mapping[str, str]
    ) -> int:
        """Try once; returns how many spans the collector rejects.

        Raises:
            _Refused: it takes none of them.
        """
        try:
            async with session.post(
                endpoint,
                data=body,
                headers=fields,
                allow_redirects=False,
            ) as response:
                answer = await response.content.read(_ANSWER_BYTES)
                status = response.status
                retry_after = response.headers.get("retry-after", "")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise _Refused(text, is_final=False) from error
        if status in _RETRIED:
            wait_s = float(retry_after) if retry_after.isdecimal() else 0.0
            raise _Refused(f"status {status}", is_final=False, wait_s=wait_s)
        if not 200 <= status < 300:
            raise _Refused(f"status {status}", is_final=True)
        try:
            return rejected_spans(answer)
        except ProtobufError:
            return 0  # it was taken, and what else is said nobody understands

    def _session(self, options: ExportOptions) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=self._connector(),
            headers=dict(options.headers),
            timeout=aiohttp.ClientTimeout(total=options.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _drop(self, count: int, why: str, text: str) -> None:
        self._spans.dropped[why] += count
        self._tell(text, count)

    def _tell_of_full_queue(self) -> None:
        lost = self._spans.dropped[QUEUE_FULL]
        if lost > self._told_of:
            self._tell("more spans than can be sent", lost - self._told_of)
            self._told_of = lost

    def _tell(self, text: str, dropped: int) -> None:
        """Log a failure, unless one was logged lately."""
        self._unlogged += dropped
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < _LOG_EVERY_S:
            return
        self._logged_at = now
        extra = {"endpoint": self.options.endpoint, "error": text, "dropped": self._unlogged}
        _log.warning("the collector does not take spans", extra=extra)
        self._unlogged = 0


async def _encode(batch: list[Record]) -> list[bytes]:
    """Encode spans, a few at a time."""
    # The clocks may drift apart, so they are compared anew each time.
    epoch_ns = time.time_ns() - time.monotonic_ns()
    encoder = SpanEncoder(lambda: epoch_ns)
    encoded: list[bytes] = []
    for number, record in enumerate(batch, 1):
        for span in spans_of(record):
            encoded += encoder.encode(span)
        if not number % _AT_ONCE:
            await asyncio.sleep(_REST_S)
    return encoded


async def _compressed(body: bytes) -> bytes:
    """Compress a batch, some of it at a time."""
    compressor = zlib.compressobj(1, wbits=_GZIP)
    pieces = []
    for at in range(0, len(body), _COMPRESSED_AT_ONCE):
        pieces.append(compressor.compress(body[at : at + _COMPRESSED_AT_ONCE]))
        await asyncio.sleep(_REST_S)
    return b"".join((*pieces, compressor.flush()))
