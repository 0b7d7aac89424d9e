"""Load before Tritons that commands start; `make standby-live` plays it for minutes."""

from __future__ import annotations

import asyncio
from collections import Counter

from benchmarks.standby_live import SIMULATED, play


async def test_a_standby_triton_is_started_for_a_load_and_no_request_fails() -> None:
    async with asyncio.timeout(120.0):
        found = await play(lambda _part: 40.0, 8.0, always=1, pool=SIMULATED)
    assert found.statuses == Counter({200: found.statuses.total()})
    assert max(found.on) > 0.0
