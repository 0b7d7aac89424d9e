"""The relay role with what it needs of a process. A worker has this, and neither the control role
nor the admin API: what only those need is not imported here."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from random import Random

from lb.balancing.scheduler import Scheduler
from lb.domain.pool import PoolSnapshot
from lb.domain.roles import ControlSide
from lb.net.file_thread import FileThread
from lb.net.iteration import IterationBudget
from lb.net.process_parts import ProcessParts
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.role import RelayRole
from lb.proxy.split import longest_batch
from lb.runtime.access import make_access
from lb.runtime.limits import find_memory, keep_freed_memory
from lb.runtime.logs import Logs
from lb.runtime.otel_variables import export_options, with_variables
from lb.runtime.security import make_security
from lb.runtime.span_export import SpanExport
from lb.settings.model import Settings
from lb.sharing.usage import UsageTable
from lb.telemetry.access_log import AccessLog
from lb.telemetry.counts import LoopLag, Reloads
from lb.telemetry.record import RequestSink, combine
from lb.wire.hops import new_identity


@cache
def version() -> str:
    """The installed version of this distribution."""
    try:
        return metadata.version("triton-lb")
    except metadata.PackageNotFoundError:
        return "unknown"


MakeSide = Callable[[ProcessParts], ControlSide]
"""Makes the control role as a relay sees it, from what a process shares."""


class RelayHost:
    """A process that serves clients, without its listeners and without what decides who gets
    requests.

    Settings reach the parts through `configure` alone, at the start and at each reload. What can
    fail (files) is made before, by `make_security`, `make_access` and `Logs`.
    """

    def __init__(
        self,
        settings: Settings,
        logs: Logs,
        make_side: MakeSide,
        digest: str = "",
        *,
        identity: bytes = b"",
        workers: int = 1,
        scheduler: Scheduler | None = None,
        usage: UsageTable | None = None,
    ) -> None:
        """Make all parts. Needs a running loop; nothing listens or connects yet.

        Args:
            settings: to begin with.
            logs: where to tell of it.
            make_side: makes what publishes the pool and hears reports.
            digest: of the text of the settings.
            identity: in hop markers; empty: a new one.
            workers: how many processes share the limits of the settings.
            scheduler: one that knows of other workers; otherwise there are none.
            usage: what workers tell each other of limits per client; None: there are no others.
        """
        self.settings = settings
        """The settings in force, as the file has them."""
        self.effective = settings
        """The same with what variables of the environment say of traces."""
        self.logs = logs
        self.workers = workers
        self.security = make_security(settings)
        self.usage = usage
        self.access = make_access(settings, table=usage)
        loop = asyncio.get_running_loop()
        self.parts = parts = ProcessParts(
            loop=loop,
            timers=TimerWheel(loop),
            tasks=TaskOwner(),
            iteration=IterationBudget(loop),
            files=FileThread(),
            tls=self.security.clients,
            rng=Random(),
            identity=identity or new_identity(os.urandom),
        )
        self.security.use(parts.files)
        self.side = side = make_side(parts)
        """The control role."""
        memory = find_memory()
        self.relay = RelayRole(
            parts, side, lambda wanted: memory.ceiling(wanted) // workers, scheduler
        )
        self._snapshot = side.pool.current
        side.pool.subscribe(self._follow)
        self.exporter = SpanExport(self.relay, parts)
        self.loop_lag = LoopLag()
        self.reloads = Reloads(digest, time.time())  # noqa: TID251  # Prometheus wants Unix time

    @property
    def max_connections(self) -> int:
        """Connections of clients that this process may have; 0 is as many as there is room for."""
        return -(-self.settings.limits.max_connections // self.workers)

    def configure(self, settings: Settings) -> None:
        """Go by these settings, the first or other ones, and by what was made for them. Nothing
        here can fail."""
        self.settings = settings
        self.effective = settings = with_variables(settings, os.environ)
        self.exporter.configure(
            export_options(
                settings, os.environ, version=version(), instance=self.parts.identity.decode()
            )
        )
        keep_freed_memory(longest_batch(settings))
        files = self.logs.files
        self.relay.configure(settings, self.access.gate, self._request_sink(), files.payloads)

    async def aclose(self) -> None:
        """Close everything; what still runs is cut."""
        await self.parts.files.aclose()
        await self.relay.aclose()
        await self.exporter.aclose()
        await self.parts.tasks.aclose()
        self.parts.timers.close()

    def _request_sink(self) -> RequestSink:
        """Who is told of finished requests."""
        file, options = self.logs.files.access, self.settings.access_log
        sinks: list[RequestSink] = [self.relay.meter, *self._more_sinks()]
        if file is not None:
            sinks.append(
                AccessLog(file, mode=options.mode, sample=options.sample, rng=self.parts.rng)
            )
        return combine(*sinks)

    def _more_sinks(self) -> Iterable[RequestSink]:
        """Parts of the process that are told of finished requests as well."""
        return ()

    def dropped_lines(self) -> Mapping[str, int]:
        """Count what each log that is on has lost: lines, or inferences of the payload log; that of
        workers included."""
        dropped = Counter(self.logs.dropped())
        if self.logs.files.payloads is not None:
            dropped["payload"] = self.relay.payload_log.dropped
        dropped.update(self.relay.worker_dropped_lines)
        return dropped

    def _follow(self, snapshot: PoolSnapshot) -> None:
        """Load and watch the TLS files of the backends that there are now."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot.backends != before.backends:
            self.security.follow([backend.spec for backend in snapshot.backends])
