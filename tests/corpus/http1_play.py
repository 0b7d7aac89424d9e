"""How rows of HTTP/1.1 are played: bytes in, answers and the backend's memory budget against the
row, and then a clean request on the same connection, where it lives, and on one of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.corpus.clients import corpus_client, pieces_of, send_wire
from tests.corpus.http1_rows import Row
from tests.corpus.observer import MemoryBudget, Seen, told
from tests.corpus.serving import Serving
from tests.wire.http1 import Answer, RawClient

_AT_ONCE: Final = 80
"""Rows under way at the same time."""
_LINGER_S: Final = 2.0
"""How long the process takes what a client goes on sending after its last answer."""
_CLOSED_WITHIN_S: Final = 30.0
"""Lingering, on a busy machine; a connection that stays open is idle for 620 s."""
_ONE_READ: Final = 16_000
"""A text up to this size, sent at once, is read at once."""


@dataclass
class Stage:
    """The process and what it relays to."""

    balancer: Serving
    memory_budget: MemoryBudget
    trusting: ssl.SSLContext
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ports(self, secure: bool) -> tuple[int, ssl.SSLContext | None]:
        """Where to connect, and how."""
        return (self.balancer.https, self.trusting) if secure else (self.balancer.http, None)

    async def check_idle(self) -> None:
        """Nothing may be left of what was played."""
        for _ in range(600):
            if not await self.balancer.metric("triton_lb_backend_in_flight"):
                break
            await asyncio.sleep(0.05)
        assert await self.balancer.metric("triton_lb_open_requests") == 0
        assert await self.balancer.metric("triton_lb_backend_in_flight") == 0


async def play_all(stage: Stage, rows: Sequence[Row], *, secure: bool, bytewise: bool) -> None:
    """Play rows, many at a time, and assert that each got its answer and nothing else happened."""
    stage.memory_budget.clear()
    wrong: dict[str, list[str]] = {}
    for at in range(0, len(rows), _AT_ONCE):
        part = rows[at : at + _AT_ONCE]
        found = await asyncio.gather(*(_play(stage, row, secure, bytewise) for row in part))
        wrong |= {str(row): problems for row, problems in zip(part, found, strict=True) if problems}
    assert not wrong, "\n".join(f"{row}: {'; '.join(found)}" for row, found in wrong.items())
    assert stage.memory_budget.violations == []
    own = {row.name_at_backend(b"") for row in rows}
    others = [
        seen.head
        for seen in stage.memory_budget.requests
        if seen.host.partition(b"-")[0] not in (b"row", b"clean")
        and seen.host not in own
        and not _is_own_question(seen)
    ]
    assert others == [], f"nobody's requests: {others}"


def _is_own_question(seen: Seen) -> bool:
    """Whether the balancer asked this itself: by address, on a connection for one question."""
    return seen.host.startswith(b"127.0.0.1:") and b"\r\nconnection: close\r\n" in seen.head


async def _play(stage: Stage, row: Row, secure: bool, bytewise: bool) -> list[str]:
    """Send one row; what was wrong with what followed."""
    number = next(stage.numbers)
    host = b"row-%d" % number
    port, context = stage.ports(secure)
    problems: list[str] = []
    async with corpus_client(port, context) as client:
        wire = row.naming(host)
        began = time.monotonic()
        sending = asyncio.ensure_future(
            send_wire(client, wire, bytewise=bytewise, half_close=row.half_close)
        )
        may_be_lost = bytewise and row.closes
        closes = await _read_answers(
            client, row, row.name_at_backend(host), problems, may_be_lost=may_be_lost
        )
        await sending
        if closes:
            is_late = time.monotonic() - began > _LINGER_S
            problems += await _look_for_end(client, may_reset=row.closes or is_late)
        else:
            problems += await _ask_cleanly(client, b"clean-%d-same" % number)
    async with corpus_client(port, context) as other:
        problems += await _ask_cleanly(other, b"clean-%d" % number)
    may_begin = row.late and (bytewise or row.half_close or len(row.wire) > _ONE_READ)
    reads = sum(1 for _ in pieces_of(wire)) if bytewise else 1
    return problems + _look_at_memory_budget(
        stage.memory_budget, row, row.name_at_backend(host), may_begin=may_begin, reads=reads
    )


async def _read_answers(
    client: RawClient, row: Row, host: bytes, problems: list[str], *, may_be_lost: bool
) -> bool:
    """Read what a row is answered with; whether the connection must be closed then. An answer may
    be lost with the reset that a client gets which goes on sending after it has asked to close."""
    statuses = (row.status, *row.then)
    of_ours = statuses.count(200) - row.reaches
    answer = Answer(0, {})
    for number, status in enumerate(statuses):
        try:
            answer = await client.answer("HEAD" if not number and row.method == b"HEAD" else "GET")
        except TimeoutError:
            problems.append(f"no answer {number}")
            return True
        if may_be_lost and not answer.status:
            return True
        if answer.status != status:
            problems.append(f"answer {number} is {answer.status} {answer.body[:100]!r}")
            return True
        if status == 200 and row.method != b"HEAD" and number >= of_ours:
            if not answer.body.startswith(host + b" "):
                problems.append(f"answer {number} is another's: {answer.body!r}")
        elif status >= 400:
            problems += _look_at_error(answer, row)
        if status and not answer.complete:
            problems.append(f"answer {number} is cut")
        if set(answer.interim) - {100} or (answer.interim and b"HTTP/1.0\r\n" in row.wire):
            problems.append(f"interim answers {answer.interim}")
    return row.ends or (row.keeps and answer.fields.get(b"connection") == b"close")


def _look_at_error(answer: Answer, row: Row) -> list[str]:
    problems: list[str] = []
    if answer.fields.get(b"connection") != b"close" and not row.keeps:
        problems.append("the error does not say that the connection is closed")
    if row.method == b"HEAD":
        return problems
    if answer.fields.get(b"content-type") != b"application/json":
        problems.append("the error is not JSON")
    said = json.loads(answer.body or b"null")
    if not (isinstance(said, dict) and list(said) == ["error"] and said["error"]):
        problems.append(f"the error says {said!r}")
    return problems


async def _look_for_end(client: RawClient, *, may_reset: bool) -> list[str]:
    """The connection must be closed in time; a client that goes on sending after it has asked
    for that, or for longer than the process lingers, may see a reset."""
    try:
        async with asyncio.timeout(_CLOSED_WITHIN_S):
            if not await client.is_closed():
                return ["something follows the last answer"]
    except TimeoutError:
        return ["not closed in time"]
    except ConnectionError:
        return [] if may_reset else ["reset"]
    return []


async def _ask_cleanly(client: RawClient, host: bytes) -> list[str]:
    try:
        await client.send(b"GET /clean HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
        answer = await client.answer()
    except (TimeoutError, ConnectionError) as error:
        return [f"a clean request got {error!r}"]
    if (answer.status, answer.body) != (200, told(host, b"/clean", b"")):
        return [f"a clean request got {answer.status} {answer.body!r}"]
    return []


def _look_at_memory_budget(
    memory_budget: MemoryBudget, row: Row, host: bytes, *, may_begin: bool, reads: int
) -> list[str]:
    """What is wrong at the backend with a row that came in at most so many reads."""
    seen = memory_budget.of(host)
    complete = [request for request in seen if request.is_complete]
    if host == row.name_at_backend(b""):
        complete = complete[-row.reaches :]  # a Host of its own, which other paces use as well
    problems = []
    if len(complete) != row.reaches:
        problems.append(f"{len(complete)} requests reached the backend")
    if len(seen) > len(complete) and not may_begin:
        problems.append(f"begun at the backend: {seen[-1].head!r}")
    if complete and row.reaches:
        problems += _look_at_first(complete[0], row, reads)
    return problems


def _look_at_first(first: Seen, row: Row, reads: int) -> list[str]:
    problems = []
    if row.body is not None and first.body != row.body:
        problems.append(f"body at the backend {first.body[:100]!r}")
    if row.chunks and first.chunks > max(row.chunks, reads):
        problems.append(f"{first.chunks} chunks at the backend")
    problems += [f"missing {line!r}" for line in row.holds if line not in first.lines]
    problems += [f"not dropped: {name!r}" for name in row.lacks if name in first.names]
    if not first.lines[0].endswith(b" HTTP/1.1"):
        problems.append(f"request line {first.lines[0]!r}")
    return problems
