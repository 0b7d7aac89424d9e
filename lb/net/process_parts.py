"""Parts of a process that its control role and its relay role share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from lb.net.file_thread import FileThread
from lb.net.iteration import IterationBudget
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """Made by the wiring, before either role."""

    loop: asyncio.AbstractEventLoop
    timers: TimerWheel
    tasks: TaskOwner
    iteration: IterationBudget
    """For costly work."""
    files: FileThread
    """Reads all files while the process runs."""
    tls: ClientTlsBook
    """For connections to backends."""
    rng: Random
    identity: bytes
    """Ours in hop markers."""
