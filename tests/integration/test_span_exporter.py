"""Spans on their way to collectors that fail in all ways."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from lb.telemetry.export_options import ExportOptions
from lb.telemetry.span_exporter import BATCH, SpanExporter
from lb.telemetry.spans import MAX_QUEUED, Record, SpanQueue
from tests.fakes.otlp import Answer, Collector, collector
from tests.fakes.records import PlainRecord, request_record
from tests.wire.waiting import eventually


def span(number: int = 1) -> Record:
    """The record of a request that no backend got: one span."""
    return request_record(PlainRecord(), number)


@pytest.fixture
def sink() -> Iterator[Collector]:
    with collector() as running:
        yield running


@asynccontextmanager
async def exporting(
    endpoint: str, *, timeout_s: float = 10.0, is_compressed: bool = False
) -> AsyncIterator[SpanQueue]:
    spans = SpanQueue()
    exporter = SpanExporter(spans, Random(1), interval_s=0.01, first_wait_s=0.01)
    exporter.configure(
        ExportOptions(
            endpoint=endpoint,
            headers={"authorization": "Bearer secret"},
            timeout_s=timeout_s,
            resource={"service.name": "triton-lb", "host.name": "a"},
            version="1.2",
            is_compressed=is_compressed,
        )
    )
    task = asyncio.create_task(exporter.run())
    try:
        yield spans
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_spans_arrive_in_protobuf_with_the_headers_of_the_settings(sink: Collector) -> None:
    async with exporting(sink.endpoint) as spans:
        for number in range(1, 21):
            spans.add(span(number))
        await eventually(lambda: spans.exported == 20)
    assert {each.trace_id for each in sink.spans} == {f"{n:032x}" for n in range(1, 21)}
    assert {each.service for each in sink.spans} == {"triton-lb"}
    assert sink.requests[0]["content-type"] == "application/x-protobuf"
    assert sink.requests[0]["authorization"] == "Bearer secret"
    assert not spans.dropped


async def test_batches_are_compressed_if_that_is_wanted(sink: Collector) -> None:
    async with exporting(sink.endpoint, is_compressed=True) as spans:
        for number in range(1, BATCH + 1):
            spans.add(span(number))
        await eventually(lambda: spans.exported == BATCH)
    assert {each.trace_id for each in sink.spans} == {f"{n:032x}" for n in range(1, BATCH + 1)}
    assert sink.requests[0]["content-encoding"] == "gzip"
    assert int(sink.requests[0]["content-length"]) < sum(map(len, sink.bodies)) / 4


async def test_a_batch_that_is_refused_for_now_is_sent_again(sink: Collector) -> None:
    sink.answers = [Answer(429), Answer(503), Answer(502)]
    async with exporting(sink.endpoint) as spans:
        spans.add(span())
        await eventually(lambda: spans.exported == 1)
    assert len(sink.bodies) == 4
    assert len(set(sink.bodies)) == 1
    assert not spans.dropped


async def test_the_collector_says_when_to_send_again(sink: Collector) -> None:
    sink.answers = [Answer(429, {"retry-after": "1"})]
    async with exporting(sink.endpoint) as spans:
        loop = asyncio.get_running_loop()
        spans.add(span())
        await eventually(lambda: len(sink.bodies) == 1)
        first_at = loop.time()
        await eventually(lambda: spans.exported == 1)
        assert loop.time() - first_at > 0.5  # without the field it is 10 ms


async def test_a_batch_that_is_refused_for_good_is_dropped_and_counted(sink: Collector) -> None:
    sink.answers = [Answer(400)]
    async with exporting(sink.endpoint) as spans:
        spans.add(span(1))
        await eventually(lambda: spans.dropped["rejected"] == 1)
        spans.add(span(2))
        await eventually(lambda: spans.exported == 1)
    assert len(sink.bodies) == 2


async def test_spans_that_a_collector_takes_only_in_part_are_counted(sink: Collector) -> None:
    sink.answers = [Answer(rejected=1)]
    async with exporting(sink.endpoint) as spans:
        spans.add(span(1))
        spans.add(span(2))
        await eventually(lambda: spans.exported + spans.dropped["rejected"] == 2)
    assert spans.dropped["rejected"] == 1


async def test_a_collector_that_hangs_holds_one_batch_and_a_full_queue(sink: Collector) -> None:
    sink.usual = Answer(hangs=True)
    async with exporting(sink.endpoint, timeout_s=600.0) as spans:
        spans.add(span())
        await eventually(lambda: len(sink.bodies) == 1)
        for number in range(MAX_QUEUED + 100):
            spans.add(span(number + 1))
        assert len(spans.waiting) == MAX_QUEUED
        assert spans.dropped == {"queue_full": 100}


async def test_a_collector_that_hangs_is_given_up_in_time(sink: Collector) -> None:
    sink.answers = [Answer(hangs=True)]
    async with exporting(sink.endpoint, timeout_s=0.2) as spans:
        spans.add(span())
        await eventually(lambda: spans.exported == 1)
    assert len(sink.bodies) >= 2  # a busy machine may be as slow as the one that hangs


async def test_a_collector_that_is_gone_costs_a_batch_at_a_time_and_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as nobody:  # bound, and nothing listens
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces"
        with caplog.at_level(logging.WARNING):
            async with exporting(endpoint) as spans:
                for number in range(BATCH + 1):
                    spans.add(span(number + 1))
                await eventually(lambda: spans.dropped["failed"] == BATCH + 1)
                assert not spans.waiting
    lines = [each for each in caplog.records if "does not take spans" in each.message]
    assert len(lines) == 1


async def test_what_is_left_is_sent_at_the_end(sink: Collector) -> None:
    spans = SpanQueue()
    exporter = SpanExporter(spans, Random(1))
    exporter.configure(ExportOptions(endpoint=sink.endpoint))
    for number in range(BATCH + 5):
        spans.add(span(number + 1))
    await exporter.flush()
    assert spans.exported == BATCH + 5
    assert len(sink.spans) == BATCH + 5


async def test_spans_go_to_another_collector_once_it_is_configured(sink: Collector) -> None:
    with collector() as other:
        spans = SpanQueue()
        exporter = SpanExporter(spans, Random(1), interval_s=0.01)
        exporter.configure(ExportOptions(endpoint=sink.endpoint, headers={"api-key": "first"}))
        task = asyncio.create_task(exporter.run())
        spans.add(span(1))
        await eventually(lambda: len(sink.spans) == 1)
        exporter.configure(ExportOptions(endpoint=other.endpoint, headers={"api-key": "second"}))
        spans.add(span(2))
        await eventually(lambda: len(other.spans) == 1)
        exporter.configure(ExportOptions())
        spans.add(span(3))
        await eventually(lambda: not spans.waiting)
        task.cancel()
        await asyncio.wait([task])
    assert [len(sink.spans), len(other.spans)] == [1, 1]
    # The first collector's credentials are no business of the second one.
    assert [each["api-key"] for each in other.requests] == ["second"]
