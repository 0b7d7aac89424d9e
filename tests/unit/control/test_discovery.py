"""Sources as the settings ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.discovery import Discovery, make_sources
from lb.control.membership import Membership
from lb.domain.backend import Backend
from lb.net.file_thread import FileThread
from lb.settings.model import Settings
from tests.fakes.dns_server import dns_server


def settings(**config: Any) -> Settings:
    return Settings.model_validate({"listen": {"http": "127.0.0.1:8000"}, **config})


class Bench:
    def __init__(self) -> None:
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.membership = Membership(self.directory)
        self.renewed: list[Backend] = []
        self.discovery = Discovery(
            self.directory, self.membership, self.renewed.append, FileThread()
        )

    @property
    def names(self) -> list[str]:
        return [record.backend.name for record in self.directory.records]

    async def until(self, *names: str) -> None:
        changed = asyncio.Event()
        end = self.directory.ref.subscribe(lambda _snapshot: changed.set())
        async with asyncio.timeout(30):
            while self.names != list(names):
                changed.clear()
                await changed.wait()
        end()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.discovery.aclose()


async def test_the_start_waits_for_the_sources(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text("- http: f:1\n")
    async with dns_server() as server:
        server.say("t.test.", "A", "10.0.0.9")
        lookup = {"host": "t.test.", "http_port": 1, "servers": [server.address]}
        config = settings(
            backends=[{"http": "c:1"}], discovery={"files": [str(path)], "dns": [lookup]}
        )
        bench.discovery.configure(config)
        assert bench.names == ["c:1"]
        await bench.discovery.start()
    assert bench.names == ["c:1", "10.0.0.9:1", "f:1"]
    names = [status.name for status in bench.discovery.statuses()]
    assert names == ["dns:t.test.", f"file:{path}"]


async def test_a_source_that_fails_holds_up_nothing(bench: Bench) -> None:
    bench.discovery.configure(settings(backends=[{"http": "c:1"}], discovery={"files": ["/no"]}))
    await bench.discovery.start()
    assert bench.names == ["c:1"]
    (status,) = bench.discovery.statuses()
    assert (status.failures, status.error) == (1, "cannot be read: No such file or directory")


async def test_other_settings_bring_other_sources(bench: Bench, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text(f"- http: {path.name}:1\n")
    bench.discovery.configure(settings(discovery={"files": [str(one)]}))
    await bench.discovery.start()
    assert bench.names == ["one:1"]
    bench.discovery.configure(settings(discovery={"files": [str(one), str(two)]}))
    await bench.until("one:1", "two:1")
    bench.discovery.configure(settings(discovery={"files": [str(two)], "max_backends": 7}))
    assert bench.names == ["two:1"]
    assert bench.membership.most == 7


async def test_files_have_the_keys_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text("- http: a:1\n  headers: {x: plain}\n")
    (source,) = make_sources(settings(discovery={"files": [str(path)]}), FileThread())
    (entry,) = await source.next()
    assert entry.headers == {"x": "plain"}


def test_sources_of_every_kind_are_made_in_the_order_of_their_rank() -> None:
    cluster = {"service": "t", "http_port": "http"}
    lookup = {"host": "t.test.", "http_port": 1}
    made = make_sources(
        settings(discovery={"files": ["f"], "kubernetes": [cluster], "dns": [lookup]}),
        FileThread(),
    )
    names = [source.name for source in made]
    assert names == ["dns:t.test.", "kubernetes:t:http", "file:f"]


async def test_a_file_cannot_name_ourselves(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text("- http: 127.0.0.1:8000\n")
    bench.discovery.configure(settings(discovery={"files": [str(path)]}))
    await bench.discovery.start()
    (status,) = bench.discovery.statuses()
    assert status.error.endswith("127.0.0.1:8000 is our own listener listen.http")


async def test_time_to_leave_is_what_is_configured(bench: Bench) -> None:
    bench.discovery.configure(settings(backends=[{"http": "c:1"}], discovery={"drain": "7s"}))
    assert bench.directory.removal_s == 7.0


async def test_connections_are_renewed_of_backends_whose_name_leads_elsewhere() -> None:
    rounds = asyncio.Semaphore(0)
    asked: list[str] = []

    async def resolve(host: str) -> frozenset[str]:
        asked.append(host)
        rounds.release()
        return frozenset({f"10.0.0.{len(asked) if host == 'moves' else 1}"})

    directory = BackendDirectory(make_policy("least_loaded", Random(1)))
    renewed: list[Backend] = []
    discovery = Discovery(
        directory, Membership(directory), renewed.append, FileThread(), resolve=resolve
    )
    backends = [
        {"name": "a", "http": "moves:1", "grpc": "moves:2"},
        {"name": "b", "grpc": "stays:2"},
        {"name": "c", "http": "10.0.0.9:1"},
        {"name": "d", "http": "unix:/run/d"},
    ]
    discovery.configure(settings(backends=backends, discovery={"resolve": "1ms"}))
    await discovery.start()
    async with asyncio.timeout(30):
        for _ in range(5):
            await rounds.acquire()
    await discovery.aclose()
    assert set(asked) == {"moves", "stays"}
    assert {backend.name for backend in renewed} == {"a"}
