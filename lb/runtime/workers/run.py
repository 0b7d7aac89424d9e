"""Runs one process of a service with workers: the control process or a worker."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any

from lb.runtime.collector import quiet_the_collector
from lb.runtime.configuration_file import ConfigurationFile
from lb.runtime.interpreter import SWITCH_S, loop_factory
from lb.runtime.limits import is_limited, raise_limit, share_one_heap
from lb.runtime.logs import Logs
from lb.runtime.sockets import Listeners, claim
from lb.runtime.workers.parent import go_on_without_supervisor
from lb.runtime.workers.seat import CONTROL, Seat, for_worker
from lb.settings.model import Settings


def run_seat(seat: Seat, file: ConfigurationFile | None) -> int:
    """Be a process of a service with workers until told to stop. Returns the exit code.

    Raises:
        LoadBalancerError: a file of the settings cannot be used.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the supervisor tells
    go_on_without_supervisor()
    if is_limited():
        share_one_heap()  # before the first thread
    _name_lines(seat)
    settings = seat.settings if seat.role == CONTROL else for_worker(seat.settings)
    listeners = Listeners(settings, claim(seat.listeners, settings))
    logs = Logs(settings)
    try:
        raise_limit()
        sys.setswitchinterval(SWITCH_S)
        runner = asyncio.Runner(loop_factory=loop_factory())
        runner.run(_serve(seat, settings, listeners, logs, file))
    finally:
        logs.close()
        listeners.close()
    return 0


async def _serve(
    seat: Seat,
    settings: Settings,
    listeners: Listeners,
    logs: Logs,
    file: ConfigurationFile | None,
) -> None:
    # Neither loads what only the other one needs.
    if seat.role == CONTROL:
        from lb.runtime.workers.control_process import ControlProcess

        await ControlProcess(seat, listeners, logs, file).main()
    else:
        from lb.runtime.workers.worker import WorkerProcess

        quiet_the_collector()
        await WorkerProcess(seat, settings, listeners, logs).main()


def _name_lines(seat: Seat) -> None:
    """Have each line of the application log say which process wrote it."""
    make = logging.getLogRecordFactory()

    def make_named(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        record.__dict__["role"] = seat.name
        return record

    logging.setLogRecordFactory(make_named)
