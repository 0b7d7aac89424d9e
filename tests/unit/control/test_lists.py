from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from lb.control import lists
from lb.control.lists import ListReader
from lb.control.questions import Reply
from lb.domain.backend import AppProtocol
from lb.domain.model import ModelEntry
from lb.health.models import ModelList
from lb.kserve import inference_pb2 as pb

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


def listing(*names: str) -> Reply:
    items = [{"name": name, "version": "1", "state": "READY"} for name in names]
    return Reply(HTTP, 200, json.dumps(items).encode(), "")


def ready(models: ModelList) -> set[bytes]:
    return {name for name, _ in models.ready}


async def test_the_same_answer_is_read_once_for_all() -> None:
    reader = ListReader()
    found = await asyncio.gather(*(reader.read(listing("a", "b")) for _ in range(5)))
    assert ready(found[0]) == {b"a", b"b"}
    assert all(each is found[0] for each in found)


async def test_answers_in_both_protocols_are_told_apart() -> None:
    reader = ListReader()
    nothing = await reader.read(Reply(GRPC, 0, b"", ""))
    assert nothing.entries == ()
    with pytest.raises(ValueError, match="not JSON"):
        await reader.read(Reply(HTTP, 200, b"", ""))
    message = pb.RepositoryIndexResponse()
    message.models.add(name="m", version="1", state="READY")
    assert ready(await reader.read(Reply(GRPC, 0, message.SerializeToString(), ""))) == {b"m"}


async def test_the_lists_that_were_seen_last_are_kept() -> None:
    reader = ListReader()
    first = await reader.read(listing("m0"))
    for number in range(1, 8):
        await reader.read(listing(f"m{number}"))
    assert await reader.read(listing("m0")) is first
    await reader.read(listing("m8"))
    assert await reader.read(listing("m0")) is first
    again = await reader.read(listing("m1"))
    assert ready(again) == {b"m1"}


async def test_very_long_lists_are_not_kept() -> None:
    reader = ListReader()
    answer = listing(*(f"model-with-a-name-{number:06}" for number in range(9000)))
    first = await reader.read(answer)
    assert len(first.entries) == 9000
    assert await reader.read(answer) is not first


async def test_others_have_turns_while_a_long_list_is_read() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await ListReader().read(listing(*(f"m{number}" for number in range(1000))))
    counting.cancel()
    assert turns >= 10


async def test_a_list_is_read_in_steps_and_no_further_than_it_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[int] = []

    class Counted(ModelList):
        def __init__(self, entries: Iterable[ModelEntry] = ()) -> None:
            super().__init__(entries)
            steps.append(len(self.entries))

    monkeypatch.setattr(lists, "ModelList", Counted)
    names = [f"m{number % 20_000}" for number in range(30_000)]
    found = await ListReader().read(listing(*names))
    assert max(steps) == 100, "lines looked at in one loop iteration"
    assert sum(steps) == len(found.entries) == 10_100
    whole = ModelList(found.entries)
    for fact in ("entries", "names", "ready", "is_changing"):
        assert getattr(found, fact) == getattr(whole, fact)
