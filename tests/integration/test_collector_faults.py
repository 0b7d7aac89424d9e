"""Requests while the collector of their traces fails: none waits for it, and memory is bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random

import pytest

from lb.telemetry.export_options import ExportOptions
from lb.telemetry.otlp import SpanEncoder
from lb.telemetry.span_exporter import BATCH, SpanExporter
from lb.telemetry.spans import MAX_QUEUED, Span, SpanQueue
from tests.fakes.otlp import Answer, collector
from tests.fakes.records import PlainRecord, request_record
from tests.fakes.virtual_loop import run_in_virtual_time
from tests.integration.test_traces import SIDES, Side
from tests.wire.waiting import eventually

_REQUESTS = 300


@asynccontextmanager
async def exporting(spans: SpanQueue, endpoint: str) -> AsyncIterator[SpanExporter]:
    exporter = SpanExporter(spans, Random(1), interval_s=0.0, first_wait_s=0.01)
    exporter.configure(ExportOptions(endpoint=endpoint, timeout_s=600.0))
    task = asyncio.create_task(exporter.run())
    try:
        yield exporter
    finally:
        task.cancel()
        await asyncio.wait([task])


def fill(spans: SpanQueue) -> None:
    while len(spans.waiting) < MAX_QUEUED:
        spans.add(request_record(PlainRecord()))


@contextmanager
def nobody() -> Iterator[str]:
    """A collector at whose port nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1/traces"


def lines(caplog: pytest.LogCaptureFixture) -> int:
    return sum("does not take spans" in each.message for each in caplog.records)


@SIDES
@pytest.mark.parametrize(
    "answer",
    [Answer(hangs=True), Answer(429, {"retry-after": "30"}), Answer(503), None],
    ids=["hangs", "429", "503", "gone"],
)
async def test_no_request_waits_for_a_collector_that_fails(
    make: type[Side], answer: Answer | None, caplog: pytest.LogCaptureFixture
) -> None:
    with collector() as sink, nobody() as gone:
        sink.usual = answer or Answer()
        async with make() as side:
            tracer = side.relay.trace(ratio=1.0)
            spans = tracer.spans
            async with exporting(spans, gone if answer is None else sink.endpoint):
                fill(spans)
                if answer is not None:
                    await eventually(lambda: len(sink.bodies) > 0)
                for _ in range(_REQUESTS):
                    assert await side.ask([]) != {}
                    assert len(spans.waiting) <= MAX_QUEUED
                assert spans.exported == 0
                if answer is not None and (answer.hangs or answer.status == 429):
                    # One batch is on its way; spans of requests filled its place, no more.
                    await eventually(lambda: spans.dropped["queue_full"] > _REQUESTS - BATCH)
                    assert len(spans.waiting) == MAX_QUEUED
                assert not side.relay.open_requests
    assert lines(caplog) <= 1


async def test_many_spans_are_encoded_a_few_at_a_time_and_the_rest_is_dropped_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """20,000 spans, a second of 10 MB/s: how many are encoded between two turns of others."""
    encoded = longest = offered = 0
    encode = SpanEncoder.encode

    def counted(self: SpanEncoder, span: Span) -> list[bytes]:
        nonlocal encoded
        encoded += 1
        return encode(self, span)

    monkeypatch.setattr(SpanEncoder, "encode", counted)
    spans = SpanQueue()
    loop = asyncio.get_running_loop()

    def turn() -> None:
        """Something else that the loop has to do, in each of its iterations."""
        nonlocal encoded, longest
        longest = max(longest, encoded)
        encoded = 0
        loop.call_soon(turn)

    loop.call_soon(turn)
    with collector() as sink:
        async with exporting(spans, sink.endpoint):
            while offered < 20_000:
                for _ in range(200):
                    spans.add(request_record(PlainRecord()))
                offered += 200
                assert len(spans.waiting) <= MAX_QUEUED
                await asyncio.sleep(0)
            await eventually(lambda: not spans.waiting)
            await eventually(lambda: spans.exported + spans.dropped.total() == offered)
    assert 0 < longest <= 8
    assert spans.dropped["queue_full"] > 0
    assert lines(caplog) == 1


def test_a_collector_that_is_gone_for_an_hour_costs_spans_and_a_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans = SpanQueue()
    offered = 0

    async def hour() -> None:
        nonlocal offered
        loop = asyncio.get_running_loop()
        exporter = SpanExporter(spans, Random(1))
        with nobody() as endpoint:
            exporter.configure(ExportOptions(endpoint=endpoint))
            task = asyncio.create_task(exporter.run())
            end = loop.time() + 3600.0
            while loop.time() < end:
                for _ in range(200):
                    spans.add(request_record(PlainRecord()))
                offered += 200
                assert len(spans.waiting) <= MAX_QUEUED
                await asyncio.sleep(10.0)
        with collector() as sink:
            exporter.configure(ExportOptions(endpoint=sink.endpoint, timeout_s=1e6))
            await eventually(
                lambda: spans.exported + spans.dropped.total() == offered, within_s=1e6
            )
        task.cancel()
        await asyncio.wait([task])

    run_in_virtual_time(hour())
    assert spans.exported >= MAX_QUEUED
    assert set(spans.dropped) == {"failed", "queue_full"}
    assert 30 < lines(caplog) <= 61
