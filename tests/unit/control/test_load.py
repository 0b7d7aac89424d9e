from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from lb.control import load
from lb.control.load import LoadReader
from lb.control.record import BackendRecord, Member
from lb.domain.backend import AdminState, Backend, BackendKind, BackendSpec, parse_address
from lb.domain.load import LoadReport
from lb.health.port import Finding
from lb.net.ask.backend_client import BackendClient
from tests.fakes.virtual_loop import run_in_virtual_time
from tests.wire.http1 import Peer, Script, reply, scripted_backend
from tests.wire.waiting import WAIT_S, eventually

PAGE = (
    b'nv_inference_pending_request_count{model="m",version="1"} 5\n'
    b'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5\n'
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends are given up as late as a test is, however long this process gets no processor."""
    monkeypatch.setattr(load, "_TIMEOUT_S", WAIT_S)


async def serve(peer: Peer) -> None:
    received = await peer.request()
    is_known = received.target == b"/metrics"
    await peer.send(reply(PAGE) if is_known else reply(status=b"404 Not Found"))


def record(
    name: str, metrics: str = "", kind: BackendKind = BackendKind.TRITON, *, is_up: bool = True
) -> BackendRecord:
    made = BackendRecord(
        Member(
            BackendSpec(
                name=name,
                http=parse_address("127.0.0.1:1"),
                metrics=parse_address(metrics) if metrics else None,
                kind=kind,
            )
        ),
        0.0,
    )
    for port in made.ports if is_up else ():
        port.health.probed(Finding.READY, 0.0)
    return made


class Told:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, LoadReport]] = []

    def __call__(self, backend: Backend, report: LoadReport) -> None:
        self.reports.append((backend.name, report))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.reports]


@asynccontextmanager
async def reading(pool: Iterable[BackendRecord], told: Told) -> AsyncIterator[LoadReader]:
    reader = LoadReader(
        BackendClient(), lambda: pool, lambda backend: {backend.name.encode(): 3}, told
    )
    try:
        async with asyncio.timeout(WAIT_S):
            yield reader
    finally:
        await reader.aclose()


async def test_a_report_says_what_waits_there_and_what_we_have_there() -> None:
    async with scripted_backend(serve) as triton:
        told, pool = Told(), [record("a", triton.target)]
        async with reading(pool, told) as reader:
            await reader.ask(pool[0])
        ((name, report),) = told.reports
        assert name == "a"
        assert report.pending == report.models[b"m"].pending == 5.0
        assert report.devices[0].utilization == report.others == 0.5
        assert report.in_flight == {b"a": 3}
        assert pool[0].load is report


async def test_the_memory_of_devices_is_asked_for_and_nobody_is_told() -> None:
    used = (
        b'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 5e9\n'
        b'nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 1e9\n'
    )

    async def with_memory(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(PAGE + used))

    told = Told()
    async with (
        scripted_backend(with_memory) as triton,
        scripted_backend(serve) as blind,
        reading([], told) as reader,
    ):
        assert await reader.memory_of(record("a", triton.target)) == 6_000_000_000
        assert await reader.memory_of(record("b", blind.target)) is None
        assert await reader.memory_of(record("c", "127.0.0.1:1")) is None
        assert await reader.memory_of(record("d")) is None
    assert told.reports == []


async def test_those_that_show_metrics_and_answer_are_asked_and_the_others_are_not() -> None:
    async with scripted_backend(serve) as triton:
        where = triton.target
        disabled = record("disabled", where)
        disabled.admin = AdminState.DISABLED
        pool = [
            record("a", where),
            record("no-metrics"),
            record("down", where, is_up=False),
            record("other", where, BackendKind.GENERIC),
            disabled,
            record("b", where),
        ]
        told = Told()
        async with reading(pool, told) as reader:
            reader.configure(0.01)
            await eventually(lambda: {"a", "b"} <= set(told.names))
        assert set(told.names) == {"a", "b"}


async def test_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pool, told = [record("gone", "127.0.0.1:1")], Told()
    async with reading(pool, told) as reader:
        await reader.ask(pool[0])
        await reader.ask(pool[0])
    assert len(caplog.records) == 1
    assert told.reports == []
    assert pool[0].load is None


async def test_a_page_of_very_many_models_is_read_whole() -> None:
    line = b'nv_inference_pending_request_count{model="m%d",version="1"} 1\n'
    page = b"".join([line % number for number in range(5000)])

    async def many(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(page))

    async with scripted_backend(many) as triton:
        told, pool = Told(), [record("a", triton.target)]
        reader = LoadReader(BackendClient(answer_bytes=2**22), lambda: pool, lambda _: {}, told)
        await reader.ask(pool[0])
        assert told.reports[0][1].pending == 5000.0


async def test_it_asks_as_often_as_it_is_told_and_can_be_switched_on_and_off() -> None:
    async with scripted_backend(serve) as triton:
        told, pool = Told(), [record("a", triton.target)]
        async with reading(pool, told) as reader:
            reader.configure(0.0)
            assert len(reader._loop) == 0
            reader.configure(0.01)
            await eventually(lambda: len(told.reports) > 1)
            reader.configure(0.0)
            assert pool[0].load is None
            await eventually(lambda: not len(reader._loop))
            reader.configure(60.0)
            assert reader.interval_s == 60.0
            assert len(reader._loop) == 1


def test_backends_are_asked_one_after_the_other_in_the_course_of_the_interval() -> None:
    asked_at: list[float] = []

    async def round_of_four() -> None:
        loop, all_asked = asyncio.get_running_loop(), asyncio.Event()

        def note(_: Backend) -> dict[bytes, int]:
            """Called when a backend is asked, whether or not it answers."""
            asked_at.append(loop.time())
            if len(asked_at) == 4:
                all_asked.set()
            return {}

        async with scripted_backend(serve) as triton:
            pool = [record(str(number), triton.target) for number in range(4)]
            reader = LoadReader(BackendClient(), lambda: pool, note, Told())
            reader.configure(4000.0)
            await all_asked.wait()
            await reader.aclose()

    run_in_virtual_time(round_of_four())
    assert min(b - a for a, b in pairwise(asked_at)) > 900.0


def many_models(count: int) -> Script:
    line = b'nv_inference_pending_request_count{model="m%d",version="1"} 1\n'
    page = b"".join([line % number for number in range(count)])

    async def serve_page(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(page))

    return serve_page


async def test_models_without_end_are_logged_once_with_their_backend(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_backend(many_models(12_000)) as triton:
        told, pool = Told(), [record("a", triton.target)]
        async with reading(pool, told) as reader:
            await reader.ask(pool[0])
            await reader.ask(pool[0])
    assert len(told.reports[0][1].models) == 10_000
    (line,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert line.__dict__["backend"] == "a"


async def test_of_all_reports_the_largest_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(load, "_MAX_REPORTS", 500_000)
    async with (
        scripted_backend(many_models(1000)) as large,
        scripted_backend(many_models(200)) as small,
    ):
        told = Told()
        pool = [record("large", large.target), record("a", small.target), record("b", small.target)]
        async with reading(pool, told) as reader:
            for each in pool:
                await reader.ask(each)
            assert [each.load is not None for each in pool] == [False, True, True]
            await reader.ask(pool[0])
    assert pool[0].load is None
    assert "more models than there is memory for" in caplog.records[-1].__dict__["why"]


async def test_of_all_pages_under_way_the_largest_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "_MAX_PAGES", 20_000)
    async with scripted_backend(many_models(1000)) as large, scripted_backend(serve) as small:
        told = Told()
        pool = [record("large", large.target), record("small", small.target)]
        async with reading(pool, told) as reader:
            await asyncio.gather(*(reader.ask(each) for each in pool))
    assert told.names == ["small"]
