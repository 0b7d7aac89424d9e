"""Sends spans where the settings say, if they say so.

The exporter needs an HTTP client, which takes a process about 0.1 s of CPU to load. It is loaded
when the settings first name a collector: at the start, or beside the traffic by a reload.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lb.net.process_parts import ProcessParts
from lb.proxy.role import RelayRole
from lb.telemetry.export_options import ExportOptions

if TYPE_CHECKING:
    from lb.telemetry.span_exporter import SpanExporter


def load_exporter() -> None:
    """Load what sends spans, so that `SpanExport.configure` does not take long."""
    import lb.net.http_sessions
    import lb.telemetry.span_exporter  # noqa: F401


class SpanExport:
    """The exporter of a process, from the first options with an endpoint on."""

    def __init__(self, relay: RelayRole, parts: ProcessParts) -> None:
        """
        Args:
            relay: notes the spans.
            parts: of the process.
        """
        self._relay = relay
        self._parts = parts
        self.options = ExportOptions()
        """Those in force."""
        self._exporter: SpanExporter | None = None
        self._running: asyncio.Task[None] | None = None

    def configure(self, options: ExportOptions) -> None:
        """Send spans there from now on, or nowhere."""
        self.options = options
        if self._exporter is None:
            if not options.endpoint:
                return
            self._exporter = self._make()
            self._running = self._parts.tasks.spawn(self._exporter.run(), name="spans")
        self._exporter.configure(options)

    async def aclose(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._exporter is not None and self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            await self._exporter.flush()

    def _make(self) -> SpanExporter:
        from lb.net.http_sessions import SteadyConnector
        from lb.telemetry.span_exporter import SpanExporter

        exporter = SpanExporter(self._relay.spans, self._parts.rng, connector=SteadyConnector)
        exporter.on_interval = self._relay.slow_models.update
        return exporter
