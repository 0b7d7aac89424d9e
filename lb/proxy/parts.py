"""Parts of the process that the relays of both protocols have."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lb.net.connection_limiter import ConnectionLimiter
from lb.net.iteration import IterationBudget
from lb.net.splice import Pumps
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.payloads.log import PayloadLog
from lb.proxy.dispatch import Dispatcher
from lb.proxy.fan_out.question import FanOut
from lb.proxy.shadow import Shadows
from lb.wire.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayParts:
    """Made complete by the wiring, before either relay."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    timers: TimerWheel
    memory_budget: MemoryBudget
    tasks: TaskOwner
    iteration: IterationBudget
    """For costly work."""
    connection_limiter: ConnectionLimiter
    """How many connections each client has."""
    tls: ClientTlsBook
    """For connections to backends."""
    pumps: Pumps
    """Move long bodies without a copy."""
    payloads: PayloadLog
    shadows: Shadows
    fan_out: FanOut | None = None
    """For requests that concern all backends; without one they are balanced like others."""
