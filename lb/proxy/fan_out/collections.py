"""Views that several clients ask for at the same time are collected once for all of them.

An answer never rests on what backends said before its client asked. So a request joins a collection
that has not begun to ask backends; if one has, the request waits for its end, and with all others
of its kind it shares the next one. Of each distinct request there is at most one collection under
way and one that waits.

The places are shared fairly: nobody begins a collection who has begun as many as there are places
left. So one client has half of them at most, and leaves as many to others as it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeAlias

from lb.domain.outcome import Reason
from lb.net.tasks import TaskOwner
from lb.proxy.fan_out import replies
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest

_log = logging.getLogger(__name__)

Collect: TypeAlias = Callable[[FanOutRequest], Awaitable[FanOutReply]]
_Key: TypeAlias = tuple[object, ...]

_INDIVIDUAL: Final = frozenset({
    b"accept-encoding", b"grpc-accept-encoding", b"traceparent", b"tracestate", b"user-agent",
    b"x-request-id",
})  # fmt: skip
"""Fields that differ between equal requests and do not change what a server says. All others
count, since a backend may show more to one client than to another."""
_LARGE: Final = 64 * 1024
"""Bytes of an answer above which its clients get it in one loop iteration each: handing ten
megabytes to a socket takes two milliseconds."""


class _Collection:
    """One round of asking, and the clients that wait for it."""

    def __init__(self, key: _Key, question: FanOutRequest) -> None:
        self.key = key
        self.question = question
        self.waiting: dict[asyncio.Future[FanOutReply], None] = {}
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None
        """Once it is its turn."""
        self.next: _Collection | None = None
        """The one that waits for its end."""


class Collections:
    """All collections of views."""

    def __init__(self, tasks: TaskOwner, collect: Collect) -> None:
        """Take what it works with.

        Args:
            tasks: owner of the tasks that collect.
            collect: asks backends and makes the answer.
        """
        self._tasks = tasks
        self._collect = collect
        self._first: dict[_Key, _Collection] = {}
        self._begun_by: Counter[Hashable] = Counter()
        """Collections by the client that asked first."""

    def __len__(self) -> int:
        """Collections that are under way or wait."""
        return self._begun_by.total()

    async def ask(self, question: FanOutRequest, limit: int) -> FanOutReply:
        """The answer to a request, shared with all that ask the same.

        Args:
            question: the request. It is given up when its client leaves.
            limit: collections that there may be, of all clients.
        """
        collection = self._joinable(question, limit)
        if collection is None:
            detail = "too many calls that concern all backends are under way"
            return replies.refusal(question, Reason.BACKENDS_FULL, detail)
        answer: asyncio.Future[FanOutReply] = asyncio.get_running_loop().create_future()
        collection.waiting[answer] = None

        def client_left() -> None:
            if not answer.done():
                detail = "nobody waits for it any more"
                answer.set_result(replies.refusal(question, Reason.CLIENT_GONE, detail))

        question.departure.then(client_left)
        try:
            return await answer
        finally:
            question.departure.then(None)
            self._leave(collection, answer)

    def _joinable(self, question: FanOutRequest, limit: int) -> _Collection | None:
        """A collection that has not begun; None when there are too many."""
        key = _key(question)
        first = self._first.get(key)
        if first is not None and not first.has_begun:
            return first
        if first is not None and first.next is not None:
            return first.next
        if self._begun_by[question.client] >= limit - len(self):
            return None
        self._begun_by[question.client] += 1
        made = _Collection(key, question)
        if first is not None:
            first.next = made
        else:
            self._start(made)
        return made

    def _start(self, collection: _Collection) -> None:
        self._first[collection.key] = collection
        name = f"view:{collection.question.operation.name}"
        collection.task = self._tasks.spawn(self._run(collection), name=name)
        # Also when it is cancelled before it has begun.
        collection.task.add_done_callback(lambda _: self._end(collection))

    def _leave(self, collection: _Collection, answer: asyncio.Future[FanOutReply]) -> None:
        """A client does not wait any more. With the last one the work ends."""
        collection.waiting.pop(answer, None)
        if collection.waiting:
            return
        if collection.task is not None:
            collection.has_begun = True  # nobody joins what is over
            collection.task.cancel()
            return
        first = self._first.get(collection.key)
        if first is not None and first.next is collection:
            first.next = None
            self._forget(collection)

    async def _run(self, collection: _Collection) -> None:
        collection.has_begun = True
        question = collection.question
        try:
            reply = await self._collect(question)
        except Exception:
            # Clients wait: this is the top frame of all that is done for them here.
            _log.exception("a call to all backends failed")
            reply = replies.refusal(question, Reason.INTERNAL, "internal error")
        for answer in tuple(collection.waiting):
            if answer.done():
                continue
            answer.set_result(reply)
            if len(reply.body) > _LARGE:
                await asyncio.sleep(0)

    def _end(self, collection: _Collection) -> None:
        """A collection is over: it is the next one's turn."""
        self._forget(collection)
        # A cancelled task holds its frames, and they the answers: no ring may keep them.
        collection.task = None
        for answer in collection.waiting:
            answer.cancel()  # it was stopped with the process
        del self._first[collection.key]
        following = collection.next
        if following is not None:
            self._start(following)

    def _forget(self, collection: _Collection) -> None:
        """Its place is free again."""
        client = collection.question.client
        self._begun_by[client] -= 1
        if not self._begun_by[client]:
            del self._begun_by[client]


def _key(question: FanOutRequest) -> _Key:
    """What requests have in common that get the same answer."""
    return (
        question.protocol,
        question.operation.name,
        question.method,
        question.target,
        tuple(field for field in question.fields if field[0] not in _INDIVIDUAL),
        question.body,
    )
