"""Reloading: all of a file or nothing, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from lb.cli.loading import load
from lb.runtime.configuration_file import ConfigurationFile, ConfigurationWatch
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.own_servers import own_server
from lb.runtime.reload import ChangeRefused, Reloader
from lb.runtime.sockets import Listeners
from lb.runtime.wiring import LoadBalancer
from lb.settings.reading import Loaded
from tests.fakes.configured import configuration_of

USUAL: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}


async def _refuse(_request: web.BaseRequest) -> web.Response:
    return web.Response(status=404)


class Running:
    """A process without its life: nothing is probed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write()
        file = ConfigurationFile(str(path), lambda: load(str(path), {}))
        loaded = file.load()
        self.logs = Logs(loaded.settings)
        self.product: LoadBalancer = LoadBalancer(loaded.settings, self.logs, loaded.digest)
        own = own_server(web.Server(_refuse))
        self.listener_set = ListenerSet(
            self.product, Listeners(loaded.settings), {"metrics": own, "admin": own}
        )
        self.reloader = Reloader(self.product, self.listener_set, file)

    async def open(self) -> None:
        """Accept, and take reloads."""
        await self.listener_set.open_own()
        await self.listener_set.open()
        self.reloader.begun.set()

    def write(self, **more: Any) -> None:
        self.path.write_text(yaml.safe_dump(USUAL | more))

    @property
    def state(self) -> object:
        """All that a reload may change."""
        return configuration_of(self.product), dict(self.listener_set.listeners.bound)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path / "config.yaml")
    await made.open()
    yield made
    made.listener_set.close()
    await made.product.aclose()
    made.logs.close()


async def test_what_differs_is_applied_and_told(running: Running) -> None:
    before = running.product.reloads.digest
    running.write(retry={"attempts": 5}, balancing={"policy": "round_robin"})
    done = await running.reloader.reload("test")
    assert set(done.changed) == {"retry.attempts", "balancing.policy"}
    assert running.product.relay.dispatcher.retry.rules.max_attempts == 5
    reloads = running.product.reloads
    assert reloads.counts == {"applied": 1, "unchanged": 0, "refused": 0}
    assert reloads.digest == done.digest != before


async def test_the_same_again_changes_nothing(running: Running) -> None:
    before = running.state
    assert (await running.reloader.reload("test")).changed == ()
    assert running.state == before
    assert running.product.reloads.counts["unchanged"] == 1


async def test_a_bad_file_is_refused_with_every_problem(running: Running) -> None:
    before = running.state
    running.write(retry={"attempts": 0}, limits={"max_headers": 1}, nonsense=1)
    with pytest.raises(ChangeRefused) as refused:
        await running.reloader.reload("test")
    assert len(refused.value.reasons) == 3
    assert all(reason.startswith(f"{running.path}:") for reason in refused.value.reasons)
    assert running.state == before
    assert running.product.reloads.counts["refused"] == 1
    assert not running.product.reloads.succeeded


async def test_what_cannot_be_prepared_is_refused_with_every_reason(
    running: Running, tmp_path: Path
) -> None:
    before = running.state
    tls = {"certificates": [{"certificate": "/nowhere/crt", "key": "/nowhere/key"}]}
    running.write(
        listen=USUAL["listen"]
        | {
            "https": {"address": f"unix:{tmp_path}/tls.sock", "tls": tls},
            "admin": f"unix:{tmp_path}/no/such",
        },
        access={"tokens": [{"name": "t", "file": "/nowhere/tokens"}]},
        access_log={"mode": "all", "path": "/nowhere/log"},
        retry={"attempts": 7},
    )
    with pytest.raises(ChangeRefused) as refused:
        await running.reloader.reload("test")
    text = str(refused.value)
    for part in ("/nowhere/crt", "no/such", "/nowhere/tokens", "/nowhere/log"):
        assert part in text
    assert running.state == before
    assert not (tmp_path / "tls.sock").exists()


async def test_without_a_file_there_is_nothing_to_reload(running: Running) -> None:
    reloader = Reloader(running.product, running.listener_set, None)
    reloader.begun.set()
    with pytest.raises(ChangeRefused, match="started without a file"):
        await reloader.reload("test")


async def test_a_process_that_goes_takes_nothing_over(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    before = running.state
    running.reloader.closed = "the process shuts down"
    running.write(retry={"attempts": 5})
    await running.reloader.ask("test")
    assert running.state == before
    assert "configuration refused" in caplog.text


async def test_reloads_follow_one_another(running: Running) -> None:
    running.write(retry={"attempts": 5})
    done = await asyncio.gather(*(running.reloader.reload("test") for _ in range(3)))
    assert sorted(len(each.changed) for each in done) == [0, 0, 1]


async def test_listeners_come_and_go_and_others_stay(running: Running, tmp_path: Path) -> None:
    before = dict(running.listener_set.listeners.bound)
    path = tmp_path / "http.sock"
    running.write(listen={"http": f"unix:{path}", "metrics": "127.0.0.1:0"})
    await running.reloader.reload("test")
    now = running.listener_set.listeners.bound
    assert set(now) == {"http", "metrics"}
    assert now["metrics"] is before["metrics"]
    assert before["http"].socket.fileno() == -1
    assert path.exists()
    running.write()
    await running.reloader.reload("test")
    assert not path.exists()


def test_the_watch_waits_until_the_file_holds_still(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(USUAL))
    told: list[None] = []
    file = ConfigurationFile(str(path), lambda: load(str(path), {}))
    file.load()
    watch = ConfigurationWatch(file, lambda: told.append(None))

    def is_told() -> bool:
        told.clear()
        watch.poll()()
        return bool(told)

    assert not is_told()
    path.write_text("another")
    assert [is_told() for _ in range(3)] == [False, True, False]
    path.unlink()
    assert [is_told() for _ in range(2)] == [False, False]
    path.write_text("a third")
    assert [is_told() for _ in range(3)] == [False, True, False]


def test_the_watch_sees_a_change_since_the_file_was_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(USUAL))

    def read() -> Loaded:
        loaded = load(str(path), {})
        path.write_text(yaml.safe_dump(USUAL | {"retry": {"attempts": 5}}))  # in the midst of it
        return loaded

    file = ConfigurationFile(str(path), read)
    file.load()
    told: list[None] = []
    watch = ConfigurationWatch(file, lambda: told.append(None))
    for _ in range(3):
        watch.poll()()
    assert len(told) == 1


def test_what_a_reload_has_read_is_not_news_to_the_watch(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(USUAL))
    file = ConfigurationFile(str(path), lambda: load(str(path), {}))
    file.load()
    told: list[None] = []
    watch = ConfigurationWatch(file, lambda: told.append(None))
    path.write_text(yaml.safe_dump(USUAL | {"retry": {"attempts": 5}}))
    file.load()
    for _ in range(3):
        watch.poll()()
    assert not told


async def test_reloads_that_wait_to_begin_are_one(running: Running) -> None:
    running.reloader.begun.clear()
    running.write(retry={"attempts": 5})
    async with asyncio.TaskGroup() as asking:
        for _ in range(5):
            asking.create_task(running.reloader.ask("test"))
        await asyncio.sleep(0)
        running.reloader.begun.set()
    assert running.product.reloads.counts == {"applied": 1, "unchanged": 0, "refused": 0}


async def test_nothing_is_reloaded_during_an_upgrade(running: Running) -> None:
    running.write(retry={"attempts": 5})
    async with asyncio.TaskGroup() as asking:
        async with running.reloader.upgrading():
            asking.create_task(running.reloader.ask("test"))
            with pytest.raises(ChangeRefused, match="an upgrade is under way"):
                await running.reloader.reload("test")
        counts = dict(running.product.reloads.counts)
    assert counts == {"applied": 0, "unchanged": 0, "refused": 1}
    assert running.product.reloads.counts["applied"] == 1, "once it is clear that we go on"


async def test_a_reload_is_passed_on_to_whoever_has_taken_over(running: Running) -> None:
    passed_on: list[str] = []

    def pass_on(why: str) -> bool:
        passed_on.append(why)
        return True

    file = ConfigurationFile(str(running.path), lambda: load(str(running.path), {}))
    reloader = Reloader(running.product, running.listener_set, file, pass_on)
    reloader.begun.set()
    running.write(retry={"attempts": 5})
    async with asyncio.TaskGroup() as asking, reloader.upgrading():
        asking.create_task(reloader.ask("SIGHUP"))
        await asyncio.sleep(0)
        reloader.closed = "process 1 has taken over"
    assert passed_on == ["SIGHUP"]
    assert running.product.relay.dispatcher.retry.rules.max_attempts != 5
