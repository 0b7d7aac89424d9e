"""Nothing of the data plane waits for the cyclic garbage collector.

What is part of a cycle stays until the collector comes, and the collector stops everything for as
long as it looks: so requests and connections must go with their last reference.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks.bench_http1_heads import SMALL
from benchmarks.bench_http2_relay import request
from benchmarks.micro.scenes import SCENES
from benchmarks.micro.sides import WIDE_WINDOW, Http1Sides, Http2Sides, Sink
from lb.wire.http2 import frames as fr

_GREETING = fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: WIDE_WINDOW}) + fr.SETTINGS_ACK


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing that is made meanwhile is left for the collector."""
    Sink.last = Sink(asyncio.Protocol())
    while gc.collect():  # what a finalizer of another test kept goes in the next round
        pass
    gc.disable()
    try:
        yield
        Sink.last = Sink(asyncio.Protocol())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [type(each).__name__ for each in gc.garbage] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", SCENES)
async def test_relaying_leaves_no_cycles(name: str) -> None:
    scene = SCENES[name](itertools.repeat(1000.0).__next__)
    for one in scene.take(50):
        scene.step(one)
    with no_garbage():
        for one in scene.take(20):
            scene.step(one)


def http1_client(*, busy: bool) -> None:
    sides = Http1Sides(time.monotonic)
    with no_garbage():
        server = sides.connect()
        server.data_received(SMALL + b"x" * 130 if busy else b"POST ")
        server.connection_lost(None)
        del server


def http1_backend(*, busy: bool) -> None:
    sides = Http1Sides(time.monotonic)
    sides.upstream.connection_lost(None)
    with no_garbage():
        upstream = sides.dial()
        if busy:
            sides.client_sends(SMALL + b"x" * 130)
        upstream.connection_lost(None)
        del upstream


def http2_client(*, busy: bool) -> None:
    sides = Http2Sides(time.monotonic)
    with no_garbage():
        server = sides.connect()
        server.data_received(fr.PREFACE + _GREETING)
        if busy:
            server.data_received(b"".join(request(1, None)))
        sides.flush()
        server.connection_lost(None)
        sides.flush()
        del server


def http2_backend(*, busy: bool) -> None:
    sides = Http2Sides(time.monotonic)
    sides.upstream.connection_lost(None)
    with no_garbage():
        connection = sides.dial()
        connection.data_received(_GREETING)
        if busy:
            sides.client_sends(b"".join(request(1, None)))
        sides.flush()
        connection.connection_lost(None)
        sides.flush()
        del connection


def sniffed_client(*, busy: bool) -> None:
    sides = Http1Sides(time.monotonic)
    with no_garbage():
        protocol = sides.relay.sniffing_protocol()
        sink = Sink(protocol)
        protocol.connection_made(sink)
        if busy:
            protocol.data_received(SMALL)
            sink.protocol.connection_lost(None)
        else:
            protocol.connection_lost(None)
        del protocol, sink


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    "end", [http1_client, http1_backend, http2_client, http2_backend, sniffed_client]
)
async def test_closed_connections_leave_no_cycles(end: Callable[..., None], busy: bool) -> None:
    end(busy=busy)
