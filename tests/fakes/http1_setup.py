"""An HTTP/1.1 relay before one scripted backend, as most integration tests of it begin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fakes.relay import Options, RunningRelay, running_http1_relay
from tests.wire.http1 import (
    RawClient,
    Script,
    ScriptedBackend,
    raw_client,
    scripted_backend,
    serve_ok,
)
from tests.wire.waiting import eventually

Serving = tuple[ScriptedBackend, RunningRelay]
Setup = tuple[ScriptedBackend, RunningRelay, RawClient]


@asynccontextmanager
async def http1_serving(
    script: Script = serve_ok, options: Options | None = None
) -> AsyncIterator[Serving]:
    """Run both; when their clients have left, nothing of any request is left behind."""
    async with (
        scripted_backend(script) as backend,
        running_http1_relay(backend.target, options=options) as relay,
    ):
        yield backend, relay
        await eventually(relay.is_clean)


@asynccontextmanager
async def http1_setup(
    script: Script = serve_ok, options: Options | None = None
) -> AsyncIterator[Setup]:
    """Run both with a client that has connected."""
    async with (
        http1_serving(script, options) as (backend, relay),
        raw_client(relay.port) as client,
    ):
        yield backend, relay, client
