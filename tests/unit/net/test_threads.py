"""Work in threads, while the system has a further thread and while it has none."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lb.net.threads import NoThread, computed, in_thread
from tests.fakes.threadless import no_further_thread


async def test_work_is_done_in_a_thread() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)
    assert await computed(b"".join, [b"a", b"b"]) == b"ab"


async def test_without_a_thread_it_is_not_done_later_either() -> None:
    called: list[int] = []
    with no_further_thread(), pytest.raises(NoThread):
        await in_thread(called.append, 1)
    await in_thread(called.append, 2)  # its thread executes all that was kept
    assert called == [2]


async def test_work_that_a_busy_thread_would_do_later_is_withdrawn() -> None:
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    busy = loop.run_in_executor(None, may_end.wait)
    called: list[int] = []
    with no_further_thread(), pytest.raises(NoThread):
        await in_thread(called.append, 1)
    may_end.set()
    await busy
    await in_thread(called.append, 2)
    await loop.shutdown_default_executor()  # all that was kept has been executed
    assert called == [2]


async def test_what_is_only_computed_needs_no_thread() -> None:
    with no_further_thread():
        assert await computed(threading.get_ident) == threading.get_ident()
