"""Backends that refuse connections, before anybody has marked them as down."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.fakes.gated import grpc_side, http_side

SIDES = {"grpc": grpc_side, "http": http_side}
_DEAD = 8
"""More than a request has attempts."""


@contextmanager
def refusing(count: int) -> Iterator[Sequence[str]]:
    """Addresses at which nobody listens."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in held]


@pytest.mark.parametrize("is_scheduled", [False, True])
@pytest.mark.parametrize("protocol", SIDES)
async def test_they_use_up_no_attempts(protocol: str, is_scheduled: bool) -> None:
    with refusing(_DEAD) as dead:
        async with asyncio.timeout(60), SIDES[protocol](1, others=dead) as side:
            side.gates[0].open = True
            if is_scheduled:
                side.schedule(concurrency=4)
            # As many as there are backends: at first each goes to another one.
            outcomes = await asyncio.gather(*(side.ask(str(each)) for each in range(_DEAD + 1)))
            assert [each.code for each in outcomes] == [side.ok] * (_DEAD + 1)
