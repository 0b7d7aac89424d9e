"""Every row of the HTTP/1.1 corpus against the process: plain and TLS, at once and by bytes.

A backend reads what is forwarded with two other parsers. After each row another client, on a
connection of its own, must get its own answer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.corpus.clients import corpus_client, send_wire
from tests.corpus.http1 import ALL, DEVIATIONS
from tests.corpus.http1_rows import Row
from tests.corpus.observer import Ledger, Seen, observing_backend, told
from tests.corpus.serving import Serving, serving
from tests.fakes.http1_backend import Answer, RawClient
from tests.fakes.tls import World

_AT_ONCE = 40
"""Rows under way at the same time."""
_CLOSED_WITHIN_S = 2.0
_ONE_READ = 16_000
"""A text up to this size, sent at once, is read at once."""
_GROUPS = tuple(dict.fromkeys(row.id.split("-")[0] for row in ALL))


@dataclass
class Stage:
    """The process and what it relays to."""

    balancer: Serving
    ledger: Ledger
    trusting: ssl.SSLContext
    numbers: itertools.count[int]

    def ports(self, secure: bool) -> tuple[int, ssl.SSLContext | None]:
        """Where to connect, and how."""
        return (self.balancer.https, self.trusting) if secure else (self.balancer.http, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("corpus")
    world = World(folder)
    async with observing_backend() as (port, ledger):
        backends = [{"name": "only", "http": f"127.0.0.1:{port}", "health": {"probe": "tcp"}}]
        async with serving(folder, backends, world) as balancer:
            yield Stage(balancer, ledger, world.client_context("http/1.1"), itertools.count())
            for _ in range(100):
                if not await balancer.metric("triton_lb_backend_in_flight"):
                    break
                await asyncio.sleep(0.05)
            assert await balancer.metric("triton_lb_open_requests") == 0
            assert await balancer.metric("triton_lb_backend_in_flight") == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("bytewise", [False, True], ids=["at once", "by bytes"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("group", _GROUPS)
async def test_corpus_gets_its_answer(
    stage: Stage, group: str, secure: bool, bytewise: bool
) -> None:
    rows = [row for row in ALL if row.id.startswith(group + "-")]
    stage.ledger.clear()
    wrong: dict[str, list[str]] = {}
    for at in range(0, len(rows), _AT_ONCE):
        part = rows[at : at + _AT_ONCE]
        for row, found in zip(
            part,
            await asyncio.gather(*(_play(stage, row, secure, bytewise) for row in part)),
            strict=True,
        ):
            if found:
                wrong[str(row)] = found
    assert not wrong, "\n".join(f"{row}: {'; '.join(found)}" for row, found in wrong.items())
    assert stage.ledger.violations == []
    named = {b"row", b"clean"}
    strangers = [
        seen.head
        for seen in stage.ledger.requests
        if seen.host.partition(b"-")[0] not in named
        and seen.host not in {row.name_at_backend(b"") for row in rows}
    ]
    assert strangers == []


async def _play(stage: Stage, row: Row, secure: bool, bytewise: bool) -> list[str]:
    """Send one row; what was wrong with what followed."""
    number = next(stage.numbers)
    host = b"row-%d" % number
    port, context = stage.ports(secure)
    problems: list[str] = []
    async with corpus_client(port, context) as client:
        wire = row.naming(host)
        sending = asyncio.ensure_future(
            send_wire(client, wire, bytewise=bytewise, half_close=row.half_close)
        )
        problems += await _read_answers(client, row, row.name_at_backend(host))
        await sending
        if row.ends:
            problems += await _look_for_end(client, may_reset=row.closes)
        else:
            problems += await _ask_cleanly(client, b"clean-%d-same" % number)
    async with corpus_client(port, context) as other:
        problems += await _ask_cleanly(other, b"clean-%d" % number)
    may_begin = row.late and (bytewise or row.half_close or len(row.wire) > _ONE_READ)
    return problems + _look_at_ledger(stage.ledger, row, row.name_at_backend(host), may_begin)


async def _read_answers(client: RawClient, row: Row, host: bytes) -> list[str]:
    problems: list[str] = []
    statuses = (row.status, *row.then)
    of_ours = statuses.count(200) - row.reaches
    for number, status in enumerate(statuses):
        try:
            answer = await client.answer("HEAD" if not number and row.method == b"HEAD" else "GET")
        except TimeoutError:
            return [*problems, f"no answer {number}"]
        if answer.status != status:
            return [*problems, f"answer {number} is {answer.status} {answer.body[:100]!r}"]
        if status == 200 and row.method != b"HEAD" and number >= of_ours:
            if not answer.body.startswith(host + b" "):
                problems.append(f"answer {number} is another's: {answer.body!r}")
        elif status >= 400:
            problems += _look_at_error(answer, is_head=row.method == b"HEAD")
        if status and not answer.complete:
            problems.append(f"answer {number} is cut")
        if set(answer.interim) - {100} or (answer.interim and b"HTTP/1.0\r\n" in row.wire):
            problems.append(f"interim answers {answer.interim}")
    return problems


def _look_at_error(answer: Answer, *, is_head: bool) -> list[str]:
    problems: list[str] = []
    if answer.fields.get(b"connection") != b"close":
        problems.append("the error does not say that the connection is closed")
    if is_head:
        return problems
    if answer.fields.get(b"content-type") != b"application/json":
        problems.append("the error is not JSON")
    said = json.loads(answer.body or b"null")
    if not (isinstance(said, dict) and list(said) == ["error"] and said["error"]):
        problems.append(f"the error says {said!r}")
    return problems


async def _look_for_end(client: RawClient, *, may_reset: bool) -> list[str]:
    """The connection must be closed in time; a client that goes on sending after it has asked
    for that may see a reset."""
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


def _look_at_ledger(ledger: Ledger, row: Row, host: bytes, may_begin: bool) -> list[str]:
    seen = ledger.of(host)
    complete = [request for request in seen if request.is_complete]
    if host == row.name_at_backend(b""):
        complete = complete[-row.reaches :]  # a Host of its own, which other paces use as well
    problems = []
    if len(complete) != row.reaches:
        problems.append(f"{len(complete)} requests reached the backend")
    if len(seen) > len(complete) and not may_begin:
        problems.append(f"begun at the backend: {seen[-1].head!r}")
    if complete and row.reaches:
        problems += _look_at_first(complete[0], row)
    return problems


def _look_at_first(first: Seen, row: Row) -> list[str]:
    problems = []
    if row.body is not None and first.body != row.body:
        problems.append(f"body at the backend {first.body[:100]!r}")
    problems += [f"missing {line!r}" for line in row.holds if line not in first.lines]
    problems += [f"not dropped: {name!r}" for name in row.lacks if name in first.names]
    if not first.lines[0].endswith(b" HTTP/1.1"):
        problems.append(f"request line {first.lines[0]!r}")
    return problems


def test_rows_have_their_own_ids_and_sources() -> None:
    assert len({row.id for row in ALL}) == len(ALL)
    assert all(row.source for row in ALL)
    assert set(DEVIATIONS) <= {row.id for row in ALL}
    assert all(DEVIATIONS.values())
