"""What the copy of a request for a shadow costs: no more than another request for the name.

Instructions of the interpreter in `lb` are counted, which say the same on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import lb
from tests.fakes.relay import running_http1_relay
from tests.wire.http1 import Peer, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

NAME, MODEL, SHADOW = b"detector", b"detector_v1", b"detector_v2"
REQUEST = b"POST /v2/models/detector/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
OURS = str(Path(lb.__file__).parent)
TIMES = 5


class Counter:
    """Counts instructions in `lb`."""

    def __init__(self) -> None:
        self.instructions = 0

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        return self._count

    def _count(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.instructions += event == "opcode"
        return self._count


async def instructions_of(step: Callable[[], Awaitable[None]]) -> float:
    """Instructions of a step, once the caches are filled."""
    counter, before = Counter(), sys.gettrace()
    for _ in range(TIMES):
        await step()
    sys.settrace(counter.trace)
    try:
        for _ in range(TIMES):
            await step()
    finally:
        sys.settrace(before)
    return counter.instructions / TIMES


async def test_a_copy_costs_no_more_than_another_request() -> None:
    async def answer(peer: Peer) -> None:
        while True:
            received = await peer.request()
            model = SHADOW if SHADOW in received.head else MODEL
            await peer.send(reply(b'{"model_name":"%b","outputs":[]}' % model))

    options = {"variant_names": frozenset({NAME})}
    async with (
        scripted_backend(answer) as backend,
        running_http1_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        relay.use_variants(NAME, {"name": "stable", "model": MODEL, "weight": 1})

        async def ask() -> None:
            await client.send(REQUEST)
            assert (await client.answer()).status == 200

        async def ask_and_wait_for_the_copy() -> None:
            fates = relay.shadows.sets[NAME].fates
            before = sum(fates.values())
            await ask()
            await eventually(lambda: sum(fates.values()) > before)

        alone = await instructions_of(ask)
        relay.use_shadow(NAME, SHADOW, b"")
        copied = await instructions_of(ask_and_wait_for_the_copy)
        assert relay.shadows.sets[NAME].fates == {("shadow", "answered"): 2 * TIMES}
    assert 0 < copied - alone <= alone
