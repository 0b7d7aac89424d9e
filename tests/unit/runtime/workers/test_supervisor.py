"""The end of a service with workers that has not started yet."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading

import pytest

from lb.runtime.sockets import Listeners
from lb.runtime.workers.supervisor import Supervisor
from lb.settings.model import Settings
from tests.fakes.gated import until

_IMPORTS = (sys.executable, "-S", "-c", "import signal; signal.pause()")
"""A process that does not hear its supervisor yet."""


@pytest.mark.parametrize("started", [1, 3], ids=["some are being started", "all import"])
async def test_a_stop_does_not_wait_for_processes_that_still_import(
    started: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "b:1"}]}
    )
    listeners = Listeners(settings)
    supervisor = Supervisor(settings, "", listeners, 2, command=_IMPORTS)
    children = (supervisor.control, *supervisor.workers)
    try:
        with caplog.at_level(logging.INFO, "lb.runtime.workers.supervisor"):
            running = asyncio.create_task(supervisor.main())
            await until(lambda: sum(each.process is not None for each in children) >= started)
            signal.raise_signal(signal.SIGTERM)
            assert await running == 0
    finally:
        listeners.close()
    assert "is killed" not in caplog.text
    assert not any(each.is_alive for each in children)


async def test_a_process_is_started_again_once_there_is_a_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "b:1"}]}
    )
    listeners = Listeners(settings)
    supervisor = Supervisor(settings, "", listeners, 1, command=_IMPORTS)
    supervisor._is_serving = True
    children = (supervisor.control, *supervisor.workers)
    start, refused = threading.Thread.start, list[str]()

    def start_later(thread: threading.Thread) -> None:
        if len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    try:
        with caplog.at_level(logging.INFO, "lb.runtime.workers.supervisor"):
            running = asyncio.create_task(supervisor.main())
            await until(lambda: all(each.process is not None for each in children))
            signal.raise_signal(signal.SIGTERM)
            assert await running == 0
    finally:
        listeners.close()
    lines = [each for each in caplog.records if "is started again" in each.message]
    assert [vars(each)["code"] for each in lines] == ["can't start new thread"] * 3
    assert not any(each.is_alive for each in children)
