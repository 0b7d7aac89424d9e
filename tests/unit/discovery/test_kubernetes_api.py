"""Lines of a watch, however they are cut, and answers of something that is not the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web

from lb.discovery.kubernetes_api import Api, Gone, Unreachable
from lb.discovery.kubernetes_login import Login
from lb.discovery.source import SourceError
from tests.fakes.kubernetes import status_object
from tests.wire.waiting import WAIT_S, stand_still

LINES = [
    {"type": kind, "object": {"metadata": {"name": "ä" * 50, "resourceVersion": str(number)}}}
    for number, kind in enumerate(("ADDED", "MODIFIED", "DELETED", "BOOKMARK"), start=7)
]
TEXT = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in LINES)


class Server:
    """Answers with some bytes, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.status = 200
        self.is_cut = False
        self.stands_still_s = 0.0
        """The event loop does, which is ours as well, before it answers."""
        self.queries: list[str] = []
        self.headers: dict[str, str] = {}
        self.page: Callable[[int], bytes] | None = None
        """Makes the answer to a request from its number, in place of the pieces."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.queries.append(request.path_qs)
        self.headers = dict(request.headers)
        stand_still(self.stands_still_s)
        response = web.StreamResponse(status=self.status, headers={"location": "http://other"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in [self.page(len(self.queries))] if self.page else self.pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if self.is_cut and request.transport is not None:
            request.transport.abort()
        return response


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    runner = web.ServerRunner(web.Server(server.answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    login = Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "n", token="secret")
    async with aiohttp.ClientSession() as session:
        yield Api(session, login, "n", "app in (a,b)")
    await runner.cleanup()


async def watched(api: Api) -> list[str]:
    found = []
    watch = await api.watch("6", 60, WAIT_S)
    try:
        while changes := await watch.changes():
            found += [f"{change.kind} {change.version}" for change in changes]
    finally:
        watch.close()
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
async def test_changes_are_the_same_however_they_are_cut(
    server: Server, api: Api, size: int
) -> None:
    server.pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    assert await watched(api) == ["ADDED 7", "MODIFIED 8", "DELETED 9", "BOOKMARK 10"]
    assert server.headers["Authorization"] == "Bearer secret"
    assert server.queries == [
        "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices?labelSelector=app+in+(a,b)"
        "&watch=true&resourceVersion=6&allowWatchBookmarks=true&timeoutSeconds=60"
    ]


async def test_a_long_change_is_read_in_turns_and_is_not_lost_by_a_cancellation(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {"name": "a", "resourceVersion": "7"}
    item = {"metadata": metadata, "endpoints": [{"addresses": ["10.0.0.1"]}] * 4000}
    server.pieces = [json.dumps({"type": "ADDED", "object": item}).encode() + b"\n"]
    is_begun = asyncio.Event()

    async def never_end(work: object) -> None:
        is_begun.set()
        await asyncio.Event().wait()

    watch = await api.watch("6", 60, WAIT_S)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("lb.discovery.kubernetes_api.between_others", never_end)
            task = asyncio.ensure_future(watch.changes())
            async with asyncio.timeout(WAIT_S):
                await is_begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (change,) = await watch.changes()
    finally:
        watch.close()
    assert (change.version, change.item) == ("7", item)


async def test_a_watch_that_is_cut_is_no_end(server: Server, api: Api) -> None:
    server.pieces, server.is_cut = [TEXT], True
    with pytest.raises(Unreachable, match="broke off"):
        await watched(api)


async def test_an_error_in_a_watch_ends_it(server: Server, api: Api) -> None:
    error = {"type": "ERROR", "object": status_object(500, "x", "etcd is away")}
    server.pieces = [json.dumps(error).encode() + b"\n"]
    with pytest.raises(Gone, match=r"^the API answers 500: etcd is away$"):
        await watched(api)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "^the API answers something else than JSON"),
        (200, b"[7]", "^the API answers something else than a list$"),
        (200, b'{"items": 7}', "^the API answers something else than a list$"),
        (200, b'{"metadata": {"resourceVersion": "\\ud800"}}', "something else than a list$"),
        (200, b'{"metadata": {"continue": "\\ud800"}}', "something else than a list$"),
        (302, b"", "^the API answers 302$"),
        (503, b"<html>", "^the API answers 503$"),
        (403, b'{"message": "no\\u0007"}', "^the API answers 403$"),
        (403, b'{"message": "%s"}' % (b"x" * 400), "^the API answers 403: x{300}$"),
    ],
)
async def test_what_is_no_answer_of_the_api_is_told(
    server: Server, api: Api, status: int, body: bytes, words: str
) -> None:
    server.status, server.pieces = status, [body]
    with pytest.raises(SourceError, match=words):
        await api.list(WAIT_S, print)


async def test_an_answer_that_never_ends_is_not_read_to_its_end(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lb.discovery.kubernetes_api._MOST_BYTES", 1000)
    server.pieces = [b"x" * 600] * 3
    with pytest.raises(SourceError, match="answers too much"):
        await api.list(WAIT_S, print)
    with pytest.raises(SourceError, match="a change that is too long"):
        await watched(api)


def page(token: str, padding: int = 0) -> bytes:
    metadata = {"resourceVersion": "7", "continue": token, "x": "x" * padding}
    return json.dumps({"items": [], "metadata": metadata}).encode()


@pytest.mark.parametrize(
    ("make", "words", "requests"),
    [
        (lambda number: page("t"), "^the API lists the same page again$", 2),
        (lambda number: page(f"t{number}"), "^the API lists more than 10 pages$", 10),
        (lambda number: page(f"t{number}", 500), "^the API answers too much$", 4),
    ],
)
async def test_a_list_that_never_ends_is_refused(
    server: Server,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[int], bytes],
    words: str,
    requests: int,
) -> None:
    monkeypatch.setattr("lb.discovery.kubernetes_api._MOST_PAGES", 10)
    monkeypatch.setattr("lb.discovery.kubernetes_api._MOST_BYTES", 2000)
    server.page = make
    with pytest.raises(SourceError, match=words):
        await api.list(WAIT_S, print)
    assert len(server.queries) == requests


async def test_time_in_which_we_stand_still_ourselves_is_not_the_apis(
    server: Server, api: Api
) -> None:
    server.pieces = [b'{"items": [], "metadata": {"resourceVersion": "7"}}']
    server.stands_still_s = 0.6
    assert await api.list(0.3, print) == "7"
    watch = await api.watch("7", 60, 0.3)
    watch.close()
