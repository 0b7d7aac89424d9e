"""The metrics port, over real sockets, in front of backends that behave and that do not."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lb.admin import metrics_app
from lb.admin.metrics_app import MAX_PAGE_BYTES, BackendPages, Target, make_metrics_app
from lb.domain.backend import Address
from lb.runtime.own_servers import own_runner
from lb.telemetry.collector import make_registry
from lb.telemetry.exposition import MAX_LINES
from tests.fakes.backends import make_backend
from tests.fakes.leaving import ask_and_leave, handled
from tests.fakes.metrics import Counters
from tests.fakes.promtool import criticism_of
from tests.fakes.tls import World
from tests.wire.waiting import eventually

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Client = TestClient[web.Request, web.Application]

TRITON_PAGE = """\
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="simple",version="1"} 42
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 7
"""


class FakeTriton:
    """A metrics port with a page, that counts how often it is read."""

    def __init__(self, answer: Handler | None = None) -> None:
        self.reads = 0
        self._answer = answer or self._page
        app = web.Application()
        app.router.add_get("/metrics", self._read)
        self._server = TestServer(app)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        self.reads += 1
        return await self._answer(request)

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=TRITON_PAGE)

    async def start(self, tls: ssl.SSLContext | None = None) -> Address:
        await self._server.start_server(ssl=tls)
        return Address("127.0.0.1", self._server.port or 0)

    async def stop(self) -> None:
        await self._server.close()


class Front:
    """The metrics port under test and the backends behind it."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.counters = Counters(backends=[make_backend("a")])

    @asynccontextmanager
    async def serve(
        self, *backends: FakeTriton, include_backends: bool = True
    ) -> AsyncIterator[Client]:
        self.targets += [
            Target(name, await backend.start())
            for name, backend in zip("abcdef", backends, strict=False)
        ]
        app = make_metrics_app(
            make_registry(self.counters.collector()),
            is_ready=lambda: True,
            targets=lambda: self.targets,
            include_backends=include_backends,
        )
        try:
            async with TestClient(TestServer(app)) as client:
                yield client
        finally:
            for backend in backends:
                await backend.stop()


async def read(client: Client, path: str = "/metrics", **headers: str) -> str:
    """A page that must be there."""
    async with client.get(path, headers=headers) as response:
        assert response.status == 200
        return await response.text()


def failures(page: str) -> dict[str, float]:
    """Failed scrapes by backend."""
    return {
        sample.labels["backend"]: sample.value
        for family in parse_text(page)
        for sample in family.samples
        if sample.name == "triton_lb_backend_scrape_failures_total"
    }


async def test_the_page_shows_ours_and_theirs_with_one_head_per_family() -> None:
    async with Front().serve(FakeTriton(), FakeTriton()) as client:
        page = await read(client)
    families = [family.name for family in parse_text(page)]
    assert len(families) == len(set(families))
    assert {"triton_lb_requests", "nv_inference_count", "process_open_fds"} <= set(families)
    assert 'nv_inference_count{backend="a",model="simple",version="1"} 42\n' in page
    assert 'nv_inference_count{backend="b",model="simple",version="1"} 42\n' in page
    assert 'process_open_fds{backend="b"} 7\n' in page
    assert page.count("# TYPE process_open_fds ") == 1
    assert page.count("# HELP nv_inference_count ") == 1


async def test_samples_of_a_family_stand_together() -> None:
    async with Front().serve(FakeTriton(), FakeTriton()) as client:
        page = await read(client)
    lines = page.splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith("process_open_fds")]
    assert len(at) == 3
    assert at == list(range(at[0], at[0] + 3))


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_both_spellings_are_plain_text(path: str) -> None:
    async with Front().serve(FakeTriton()) as client, client.get(path) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "nv_inference_count" in await response.text()


async def test_a_page_with_theirs_is_plain_text_whatever_is_asked_for() -> None:
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with (
        Front().serve(FakeTriton()) as client,
        client.get("/metrics", headers=openmetrics) as response,
    ):
        assert response.content_type == "text/plain"
        assert "nv_inference_count" in await response.text()


async def test_ours_alone_follow_the_accept_field() -> None:
    openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with (
        Front().serve(FakeTriton()) as client,
        client.get("/metrics/own", headers=openmetrics) as response,
    ):
        assert response.content_type == "application/openmetrics-text"
        page = await response.text()
    families = {family.name for family in parse_openmetrics(page)}
    assert "triton_lb_backend_attempt_duration_seconds" in families
    assert "nv_inference_count" not in families
    assert page.count("# EOF") == 1


async def test_ours_alone_pass_promtool() -> None:
    async with Front().serve(FakeTriton()) as client:
        page = await read(client, "/metrics/own")
    assert criticism_of(page.encode()) == ""


async def test_backends_can_be_left_out() -> None:
    triton = FakeTriton()
    async with Front().serve(triton, include_backends=False) as client:
        page = await read(client)
    assert "triton_lb_requests_total" in page
    assert "nv_inference_count" not in page
    assert triton.reads == 0


async def test_a_large_family_is_one_family() -> None:
    front = Front()
    front.counters.backends = [make_backend(f"gpu-{number}") for number in range(40)]
    for backend in front.counters.backends:
        for port in backend.ports:
            assert port is not None
            port.latency.counts[0] += 1
    async with front.serve(FakeTriton()) as client:
        page = await read(client)
    name = "triton_lb_backend_attempt_duration_seconds"
    assert page.count(f"# TYPE {name} ") == 1
    assert page.count(f"\n{name}_bucket{{") == 40 * 2 * 17
    (family,) = (family for family in parse_text(page) if family.name == name)
    assert len(family.samples) == 40 * 2 * 19


async def test_a_dead_backend_is_not_asked() -> None:
    triton = FakeTriton()
    front = Front()
    async with front.serve(triton) as client:
        front.targets = [replace(target, is_dead=True) for target in front.targets]
        assert "nv_inference_count" not in await read(client)
    assert triton.reads == 0


async def test_readers_within_a_second_share_one_round() -> None:
    triton = FakeTriton()
    async with Front().serve(triton) as client:
        pages = await asyncio.gather(*(read(client) for _ in range(5)))
    assert triton.reads == 1
    assert all("nv_inference_count" in page for page in pages)


class SlowPage:
    """Our page with that of a backend which answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.made = 0
        """Pages of ours that were made."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._backend = FakeTriton(self._answer)

    def collect(self) -> Iterator[Metric]:
        self.made += 1
        yield GaugeMetricFamily("made", "Pages.", self.made)

    async def _answer(self, _: web.Request) -> web.StreamResponse:
        await self.may_answer.wait()
        return web.Response(text=TRITON_PAGE)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[tuple[str, int]]:
        """Serve as the process does."""
        target = Target("a", await self._backend.start())
        app = make_metrics_app(
            self._registry, is_ready=lambda: True, targets=lambda: [target], include_backends=True
        )
        runner = own_runner("metrics", app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield runner.addresses[0]
        finally:
            await runner.cleanup()
            await self._backend.stop()


async def test_those_who_ask_while_a_page_is_made_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_app, "SCRAPE_DEADLINE_S", 30.0)
    page = SlowPage()
    async with page.serve() as address, aiohttp.ClientSession() as session:

        async def ask() -> str:
            async with session.get("http://{}:{}/metrics".format(*address)) as response:
                return await response.text()

        first = asyncio.ensure_future(ask())
        await eventually(lambda: handled() >= 1)
        others = [asyncio.ensure_future(ask()) for _ in range(20)]
        await eventually(lambda: handled() >= 21)
        page.may_answer.set()
        assert "made 1.0" in await first
        assert {each.count("made 2.0") for each in await asyncio.gather(*others)} == {1}
        assert page.made == 2


async def test_no_page_is_made_for_those_who_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_app, "SCRAPE_DEADLINE_S", 30.0)
    page = SlowPage()
    async with page.serve() as address:
        writers = [(await asyncio.open_connection(*address))[1] for _ in range(20)]
        for writer in writers:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: handled() >= 20)
        for writer in writers:
            writer.close()
        await eventually(lambda: not handled())
        assert page.made == 0


async def test_clients_that_do_not_speak_http_leave_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with SlowPage().serve() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /x?" + b"\xff" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
    assert not caplog.records


async def test_pages_take_a_part_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_app, "_SAVED_S", 0.0)
    monkeypatch.setattr(metrics_app, "_SHARE", 0.001)
    front = Front()
    async with front.serve(FakeTriton()) as client:
        await read(client, "/metrics/own")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await read(client, "/metrics/own")
        async with client.get("/livez") as response:
            assert response.status == 200


async def test_a_backend_that_hangs_is_left_out_and_counted() -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(text=TRITON_PAGE)

    loop = asyncio.get_running_loop()
    async with Front().serve(FakeTriton(hang), FakeTriton()) as client:
        started_at = loop.time()
        page = await read(client)
        took = loop.time() - started_at
        release.set()
    assert took < 20.0
    assert 'backend="b",model="simple"' in page
    assert 'backend="a",model="simple"' not in page
    assert failures(page) == {"a": 1, "b": 0}


async def status_500(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text=TRITON_PAGE)


async def redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def not_utf8(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b'm{x="\xff"} 1\n')


async def cut_short(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(TRITON_PAGE.encode())
    assert request.transport is not None
    request.transport.abort()
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"m 1\n" * 65536)
    except ConnectionResetError:
        return response


@pytest.mark.parametrize("answer", [status_500, redirect, not_utf8, cut_short])
async def test_a_bad_page_is_left_out_and_counted(answer: Handler) -> None:
    async with Front().serve(FakeTriton(answer), FakeTriton()) as client:
        page = await read(client)
    assert failures(page) == {"a": 1, "b": 0}
    assert 'backend="b",model="simple"' in page
    assert 'backend="a",' not in page.partition("# HELP nv_inference_count")[2]


async def test_a_page_without_end_is_shown_in_part_and_counted() -> None:
    async with Front().serve(FakeTriton(endless), FakeTriton()) as client:
        page = await read(client)
    assert failures(page) == {"a": 0, "b": 0}
    assert 0 < page.count('\nm{backend="a"} 1') <= MAX_LINES
    assert 'backend="b",model="simple"' in page
    assert page.endswith("\n")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, b"m 1\n" * 65536),
        ({}, b"x" * 65536),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"m 1\n" * 2**20)),
        ({"Content-Encoding": "deflate"}, zlib.compress(b"m 1\n" * 2**20)),
    ],
)
async def test_no_more_is_taken_of_a_page_without_end_than_a_page_may_have(
    fields: dict[str, str], part: bytes
) -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers=fields)
        await response.prepare(request)
        try:
            while True:
                await response.write(part)
                sent += len(part)
        except ConnectionResetError:
            return response

    tracemalloc.start()
    try:
        async with Front().serve(FakeTriton(answer), FakeTriton()) as client:
            page = await read(client)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 'backend="b",model="simple"' in page
    assert sent < MAX_PAGE_BYTES + 16 * 2**20, "a page, and what sockets hold"
    assert most < 8 * MAX_PAGE_BYTES


async def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_app, "_SEND_S", 0.2)

    async def long(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"m 1\n" * 90_000 + b'n{x="%b"} 1\n' % (b"y" * 15_000) * 400)

    async with Front().serve(FakeTriton(long)) as client:
        address = client.server.host, client.server.port
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, address)
            await loop.sock_sendall(raw, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await loop.sock_recv(raw, 1)
            server = client.server.runner.server
            assert server is not None
            await eventually(lambda: not server.connections)
        assert "nv_" not in await read(client, "/metrics/own")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/own"])
async def test_head_has_the_fields_and_no_body(path: str) -> None:
    async with Front().serve(FakeTriton()) as client, client.head(path) as response:
        assert response.status == 200
        assert int(response.headers["Content-Length"]) > 1000
        assert await response.read() == b""


async def test_a_backend_that_is_down_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    caplog.set_level(logging.INFO, logger="lb.admin.metrics_app")
    triton = FakeTriton()
    here = await triton.start()
    gone = Address("127.0.0.1", unused_tcp_port)
    async with aiohttp.ClientSession() as session:
        at = gone
        pages = BackendPages(lambda: [Target("a", at)], session, cache_s=0.0)
        for _ in range(3):
            await pages.read()
        at = here
        assert b"nv_inference_count" in (await pages.read()).families
    await triton.stop()
    messages = [record.message for record in caplog.records]
    assert messages == [
        "metrics of a backend cannot be read",
        "metrics of a backend can be read again",
    ]


async def test_failures_of_backends_that_left_are_forgotten(unused_tcp_port: int) -> None:
    targets = [Target("a", Address("127.0.0.1", unused_tcp_port))]
    async with aiohttp.ClientSession() as session:
        pages = BackendPages(lambda: targets, session, cache_s=0.0)
        await pages.read()
        family, _ = pages.collect()
        assert [sample.value for sample in family.samples] == [1]
        returned, targets = targets, []
        await pages.read()
        targets = returned
        assert [sample.value for sample in family.samples] == [0]


async def test_a_page_is_read_over_tls_only_from_who_can_prove_its_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    triton = FakeTriton()
    at = await triton.start(world.server_context())
    trusting = world.client_context()
    targets = [Target("a", at, trusting, "localhost"), Target("b", at, trusting, "other")]
    async with aiohttp.ClientSession() as session:
        pages = BackendPages(lambda: targets, session, cache_s=0.0)
        families = (await pages.read()).families
        family, _ = pages.collect()
        failed = [sample.value for sample in family.samples]
    await triton.stop()
    assert b"nv_inference_count" in families
    assert failed == [0, 1]
    assert triton.reads == 1


async def test_a_reader_that_leaves_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def long(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'm{x="%b"} 1\n' % (b"y" * 15_000) * 400)

    backend = FakeTriton(long)
    address = await backend.start()
    try:
        app = make_metrics_app(
            make_registry(Counters(backends=[make_backend("a")]).collector()),
            is_ready=lambda: True,
            targets=lambda: [Target("a", address)],
            include_backends=True,
        )
        await ask_and_leave("metrics", app, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    finally:
        await backend.stop()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
