"""From one configuration to another: what lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lb.access.gate import Credentials
from lb.domain.client import NOBODY
from lb.domain.errors import RequestRefused
from lb.runtime.logs import Logs
from lb.runtime.reload import prepare
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.records import INFER

TOKEN = "0123456789abcdef"


def settings(**more: Any) -> Settings:
    usual = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"name": "a", "http": "127.0.0.1:1"}]}
    return Settings.model_validate(usual | more)


class Running:
    """A product with its logs."""

    def __init__(self, given: Settings) -> None:
        self.logs = Logs(given)
        self.product: LoadBalancer = LoadBalancer(given, self.logs)

    def change(self, given: Settings) -> None:
        change = prepare(self.product, (), given)
        before = change.apply(self.product)
        change.listeners.close()
        before.close(change.log_files)

    def admit(self) -> None:
        gate = self.product.access.gate
        credentials = gate.credentials(INFER, [], is_control=False)
        assert isinstance(credentials, Credentials)
        gate.admit(credentials, None, NOBODY, 1.0)

    async def close(self) -> None:
        await self.product.aclose()
        self.logs.close()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running(settings(access={"limits": [{"by": "address", "max_concurrent_requests": 1}]}))
    yield made
    await made.close()


async def test_what_clients_have_used_up_of_a_limit_that_stays_lives_on(running: Running) -> None:
    running.admit()
    running.change(
        settings(
            access={
                "limits": [{"by": "address", "max_concurrent_requests": 1}],
                "open_health": False,
            }
        )
    )
    with pytest.raises(RequestRefused):
        running.admit()
    running.change(settings(access={"limits": [{"by": "address", "max_concurrent_requests": 2}]}))
    running.admit()


async def test_counts_of_tokens_go_on(running: Running) -> None:
    access = {"tokens": [{"name": "t", "token": TOKEN, "roles": ["infer"]}]}
    running.change(settings(access=access))
    running.product.access.gate.requests["t"] = 7
    running.change(settings(access=access | {"open_health": False}))
    assert running.product.access.gate.requests["t"] == 7


async def test_backends_that_stay_keep_their_counters(running: Running) -> None:
    [record] = running.product.control.directory.records
    backends = [{"name": "a", "http": "127.0.0.1:1", "weight": 2}, {"http": "127.0.0.1:2"}]
    running.change(settings(backends=backends, balancing={"policy": "round_robin"}))
    assert running.product.control.directory.records[0] is record
    assert record.backend.inverse_weight == 0.5
    assert len(running.product.control.directory.records) == 2


async def test_unchanged_options_are_not_swapped(running: Running) -> None:
    http1, http2 = running.product.relay.http1.options, running.product.relay.http2.options
    heads, gate = running.product.relay.http1.heads, running.product.access.gate
    running.change(
        settings(
            access={"limits": [{"by": "address", "max_concurrent_requests": 1}]},
            retry={"attempts": 9},
        )
    )
    assert running.product.relay.http1.options is http1
    assert running.product.relay.http2.options is http2
    assert running.product.relay.http1.heads is heads
    assert running.product.access.gate is gate


async def test_another_access_log_takes_the_lines(running: Running, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    running.change(settings(access_log={"mode": "all", "path": str(first)}))
    assert running.logs.files.access is not None
    running.logs.files.access.write(b"one\n")
    running.change(settings(access_log={"mode": "errors", "path": str(first)}))
    running.logs.files.access.write(b"two\n")
    running.change(settings(access_log={"mode": "all", "path": str(second)}))
    running.logs.files.access.write(b"three\n")
    running.change(settings(access_log={"mode": "off"}))
    assert first.read_bytes() == b"one\ntwo\n"
    assert second.read_bytes() == b"three\n"
