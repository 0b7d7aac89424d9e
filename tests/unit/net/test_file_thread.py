"""Work in the file thread: results, files that hang, the end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lb.net.file_thread import FileStalled, FileThread
from lb.net.files import touching

STALL_S = 0.05


@pytest.fixture
async def files() -> AsyncIterator[FileThread]:
    made = FileThread(stall_s=STALL_S)
    yield made
    await made.aclose()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # it is another thread that changes it
            await asyncio.sleep(0.005)


class Hanging:
    """A file that does not answer before it is told to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answers = threading.Event()
        self.asked = 0

    def read(self) -> str:
        self.asked += 1
        with touching(self.path):
            assert self.answers.wait(60)
        return self.path


@pytest.fixture
def hanging() -> Hanging:
    return Hanging("/mnt/a")


async def test_work_is_done_in_one_thread_in_order_and_its_outcome_returned(
    files: FileThread,
) -> None:
    order: list[int] = []
    jobs = [files.run(number, lambda n=number: order.append(n) or n) for number in range(20)]  # type: ignore[misc,func-returns-value]
    assert await asyncio.gather(*jobs) == list(range(20))
    assert order == list(range(20))
    assert threading.get_ident() != await files.run("thread", threading.get_ident)
    with pytest.raises(FileNotFoundError):
        await files.run("missing", Path("/nowhere/at/all").read_text)
    with pytest.raises(TimeoutError, match="of the work"):
        await files.run("late", _raise_timeout)


def _raise_timeout() -> None:
    raise TimeoutError("of the work")


async def test_a_file_that_hangs_is_told_counted_and_asked_once(
    files: FileThread, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    late: list[str] = []
    with pytest.raises(FileStalled, match=r"^/mnt/a does not answer: its file system hangs$"):
        await files.run("a", hanging.read, discard=late.append)
    for _ in range(3):
        with pytest.raises(FileStalled, match=r"^/mnt/a does not answer"):
            await files.run("a", hanging.read)
    assert (dict(files.stalls), files.stalled, hanging.asked) == ({"/mnt/a": 1}, 1, 1)
    hanging.answers.set()
    await eventually(lambda: not files.stalled)
    assert late == ["/mnt/a"]
    assert await files.run("a", hanging.read) == "/mnt/a"
    assert [record.message for record in caplog.records] == [
        "file does not answer",
        "file answers again",
    ]


async def test_others_are_read_while_files_hang(files: FileThread) -> None:
    hanging = [Hanging(f"/mnt/{number}") for number in range(8)]
    waiting = [asyncio.gather(files.run(each, each.read)) for each in hanging]
    assert await files.run("other", lambda: "read") == "read"
    assert await asyncio.gather(*waiting, return_exceptions=True)
    assert files.stalled == 8
    assert await files.run("other", lambda: "read") == "read"
    for each in hanging:
        each.answers.set()
    await eventually(lambda: not files.stalled)


async def test_threads_that_hang_are_few_and_then_everybody_is_told(files: FileThread) -> None:
    hanging = [Hanging(f"/mnt/{number}") for number in range(20)]
    outcomes = await asyncio.gather(
        *(files.run(each, each.read) for each in hanging), return_exceptions=True
    )
    assert all(isinstance(outcome, FileStalled) for outcome in outcomes)
    assert sum(each.asked for each in hanging) == files.stalled == 9
    assert str(outcomes[-1]).startswith("files cannot be read while these do not answer: /mnt/0,")
    for each in hanging:
        each.answers.set()
    assert await files.run("other", lambda: "read") == "read"
    await eventually(lambda: not files.stalled)


async def test_work_that_computes_does_not_hang(files: FileThread) -> None:
    go_on = threading.Event()
    working = asyncio.gather(files.run("busy", lambda: go_on.wait(60)))
    await asyncio.sleep(3 * STALL_S)  # it would count as hanging by then
    assert (files.stalled, dict(files.stalls)) == (0, {})
    go_on.set()
    assert await working == [True]


async def test_a_follower_looks_once_at_a_time_and_its_news_come_in_the_loop(
    files: FileThread,
) -> None:
    may_look = threading.Event()
    applied: list[int] = []

    class Follower:
        looks = 0

        def poll(self) -> Callable[[], None] | None:
            self.looks += 1
            assert may_look.wait(60)
            if self.looks > 1:
                return None
            return lambda: applied.append(threading.get_ident())

    follower = Follower()
    files.follow(follower)
    await eventually(lambda: follower.looks == 1)
    files.follow(follower)
    may_look.set()
    await eventually(lambda: bool(applied))
    assert (follower.looks, applied) == (1, [threading.get_ident()])
    files.follow(follower)
    await eventually(lambda: follower.looks == 2)


async def test_the_end_waits_for_nothing(hanging: Hanging) -> None:
    files = FileThread(stall_s=60.0)
    waiting = asyncio.gather(files.run("a", hanging.read), return_exceptions=True)
    await eventually(lambda: bool(hanging.asked))
    (thread,) = [each for each in threading.enumerate() if each.name == "files"]
    assert thread.daemon
    await files.aclose()
    assert isinstance((await waiting)[0], asyncio.CancelledError)
    with pytest.raises(FileStalled, match="the process ends"):
        await files.run("b", hanging.read)
    files.follow(hanging)  # type: ignore[arg-type]
    hanging.answers.set()
    await eventually(lambda: not thread.is_alive())


async def test_counters_are_bounded(files: FileThread) -> None:
    for number in range(105):
        files._count(f"/mnt/{number}")
    assert len(files.stalls) == 101
    assert files.stalls["(others)"] == 5


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = FileThread(stall_s=5.0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            first = asyncio.gather(files.run("first", lambda: 1))
            await eventually(lambda: "no thread can be started" in caplog.text)
        assert await first == [1], "without other work that needs a thread"
        assert [record.message for record in caplog.records] == [
            "no thread can be started to read files",
            "a thread reads files again",
        ]
    finally:
        await files.aclose()


async def test_work_without_a_thread_is_given_up_in_the_end(
    files: FileThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _refuse)
        outcomes = await asyncio.gather(
            *(files.run(number, lambda n=number: done.append(n)) for number in range(3)),  # type: ignore[misc]
            return_exceptions=True,
        )
        assert [str(each) for each in outcomes] == ["no thread can be started to read files"] * 3
    assert len(caplog.records) == 1, "said once, however often it was tried"
    await files.run(3, lambda: done.append(3))
    assert done == [3]


async def test_what_nobody_waits_for_any_more_is_not_begun(hanging: Hanging) -> None:
    # Within so long a stall no other thread takes over, however slow the machine is.
    files = FileThread(stall_s=600)
    done: list[str] = []
    first = asyncio.gather(files.run("a", hanging.read))
    await eventually(lambda: bool(hanging.asked))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await files.run("b", lambda: done.append("cancelled"))
    anew = asyncio.gather(files.run("b", lambda: done.append("asked anew")))
    hanging.answers.set()
    await asyncio.gather(first, anew)
    assert done == ["asked anew"]
    await files.aclose()
