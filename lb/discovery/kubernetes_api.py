"""Two requests of the API of Kubernetes: a list of EndpointSlices, and a watch of their changes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from lb.discovery.kubernetes_login import Login
from lb.discovery.kubernetes_slices import word_of
from lb.discovery.source import SourceError
from lb.kserve.merge.json_reader import JsonReader
from lb.kserve.merge.steps import STEP_BYTES, Steps
from lb.net.steps import ResultT, between_others
from lb.net.timeouts import fair_timeout

_PAGE: Final = 20
"""Slices of a list that come at once: usually 2,000 endpoints, 20,000 at most."""
_MOST_BYTES: Final = 32 << 20
"""Bytes of a list with all its pages, and of one change."""
_MOST_PAGES: Final = 1000
"""Pages of a list: 20,000 slices. Small pages without end would reach the limit of bytes late."""
_MOST_PARTS: Final = 100_000
"""Brackets, braces and commas of one slice: a hundred for each of its 1,000 endpoints."""
_TOLD: Final = 300
"""Characters of an error of the API that are told."""
_NO_JSON: Final = "the API answers something else than JSON, or far too long JSON"
_NO_LIST: Final = "the API answers something else than a list"
_GONE: Final = 410
_KINDS: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds, times: half a minute until a watch is given up whose other side has gone."""
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)


class Unreachable(SourceError):
    """There is no answer, or no whole one. What is known stays so, and can be gone on from."""


class Gone(SourceError):
    """The API no longer tells what has changed since then: everything has to be listed anew."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch."""

    kind: str
    """`ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`."""
    item: Mapping[str, object]
    version: str


class Api:
    """Asks for the slices of one namespace."""

    def __init__(
        self, session: aiohttp.ClientSession, login: Login, namespace: str, selector: str
    ) -> None:
        """
        Args:
            session: without limits of its own.
            login: where and how.
            namespace: of the slices.
            selector: of their labels.
        """
        self._session = session
        self._login = login
        self._url = f"{login.url}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = selector

    async def list(self, timeout_s: float, take: Callable[[object], None]) -> str:
        """List all slices, page by page. An API that names next pages without end is refused.

        Args:
            timeout_s: for each page.
            take: called with each slice.

        Returns:
            The version of the list: a watch from there on misses nothing.

        Raises:
            Gone: a page came too late.
            SourceError: there is no list, or it is too long.
        """
        query = {"limit": str(_PAGE)}
        room = _MOST_BYTES
        tokens = {""}
        while len(tokens) <= _MOST_PAGES:
            try:
                async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                    body = await self._body(query, room)
            except _BROKEN as error:
                raise Unreachable(_reason(error, timeout_s)) from error
            room -= len(body)
            tree = await _read(_read_list(body, take))
            metadata = _mapping(tree.get("metadata"))
            try:
                token = word_of(metadata.get("continue"))
                version = word_of(metadata.get("resourceVersion"))
            except ValueError as error:
                raise SourceError(_NO_LIST) from error
            if not token:
                if not version:
                    raise SourceError(_NO_LIST)
                return version
            if token in tokens:
                raise SourceError("the API lists the same page again")
            tokens.add(token)
            query["continue"] = token
        raise SourceError(f"the API lists more than {_MOST_PAGES} pages")

    async def watch(self, version: str, last_s: int, timeout_s: float) -> Watch:
        """All changes since a version, to be closed in the end.

        Args:
            version: of a list, or of the last change.
            last_s: when the API is to end it.
            timeout_s: for its beginning.

        Raises:
            Gone: the version is too old.
            SourceError: it cannot be had.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(last_s),
        }
        try:
            async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                response = await self._get(query)
        except _BROKEN as error:
            raise Unreachable(_reason(error, timeout_s)) from error
        _keep_alive(response)
        return Watch(response, last_s + timeout_s)

    async def _body(self, query: Mapping[str, str], most: int) -> bytes:
        response = await self._get(query)
        try:
            return await _read_body(response.content, most)
        finally:
            response.close()

    async def _get(self, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        login = self._login
        headers = {"accept": "application/json", "user-agent": "triton-lb"}
        if login.token:
            headers["authorization"] = f"Bearer {login.token}"
        response = await self._session.get(
            self._url,
            params={"labelSelector": self._selector, **query},
            headers=headers,
            ssl=login.tls or True,
            server_hostname=login.server_name,
            allow_redirects=False,
        )
        if response.status == 200:
            return response
        try:
            body = await _read_body(response.content, _MOST_BYTES)
        finally:
            response.close()
        raise await _refusal(response.status, body)


class Watch:
    """Changes, as they come."""

    def __init__(self, response: aiohttp.ClientResponse, last_s: float) -> None:
        """
        Args:
            response: whose body it is.
            last_s: when it is over in any case.
        """
        self._response = response
        self._ends_at = asyncio.get_running_loop().time() + last_s
        self._pieces: list[bytes] = []
        """Pieces of a line whose end has not come."""
        self._size = 0
        self._ended: deque[bytes] = deque()
        """Whole lines that have not been read."""
        self._found: list[Change] = []
        """Changes that nobody has been told."""

    async def changes(self) -> list[Change]:
        """Wait for changes; none any more when the watch is over. May be cancelled, and be called
        again then.

        Raises:
            Gone: it cannot go on.
            Unreachable: it broke off.
            SourceError: it tells what cannot be read.
        """
        while not self._found:
            if not self._ended:
                try:
                    async with asyncio.timeout_at(self._ends_at):
                        data = await self._response.content.readany()
                except _BROKEN as error:
                    raise Unreachable(_reason(error, 0.0)) from error
                if not data:
                    return []
                self._ended += [line for line in self._lines(data) if line.strip()]
            while self._ended:
                # If this is cancelled, the next call reads the line again.
                self._found.append(await _read_change(self._ended[0]))
                self._ended.popleft()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """End it."""
        self._response.close()

    def _lines(self, data: bytes) -> list[bytes]:
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._pieces, ended[0]])
            self._pieces, self._size = [], 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > _MOST_BYTES:
            raise SourceError("the API tells a change that is too long")
        return ended


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    transport = connection.transport if connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def _read_body(content: aiohttp.StreamReader, most: int) -> bytes:
    """Read everything, unless that is more than so many bytes."""
    pieces = []
    size = 0
    while data := await content.readany():
        pieces.append(data)
        size += len(data)
        if size > most:
            raise SourceError("the API answers too much")
    return b"".join(pieces)


async def _read_change(line: bytes) -> Change:
    tree = await _read_tree(line)
    kind, item = str(tree.get("type")), _mapping(tree.get("object"))
    if kind == "ERROR":
        raise Gone(_words(item.get("code"), item))
    try:
        version = word_of(_mapping(item.get("metadata")).get("resourceVersion"))
    except ValueError:
        version = ""
    if kind not in _KINDS or not version:
        raise SourceError("the API tells a change that cannot be read")
    return Change(kind, item, version)


async def _refusal(status: int, body: bytes) -> SourceError:
    """An error that the API tells by a `Status`, or something before it in its own way."""
    try:
        told = await _read_tree(body)
    except SourceError:
        told = {}
    text = _words(status, told)
    return Gone(text) if status == _GONE else SourceError(text)


def _words(code: object, told: Mapping[str, object]) -> str:
    words = " ".join(str(told.get("message") or "").split())[:_TOLD]
    shown = f": {words}" if words and words.isprintable() else ""
    return f"the API answers {code}{shown}"


async def _read_tree(body: bytes) -> Mapping[str, object]:
    """Read a mapping in JSON. Whatever is no mapping counts as an empty one."""
    if len(body) > STEP_BYTES:
        return _mapping(await _read(_read_whole(JsonReader(body))))
    try:
        return _mapping(json.loads(body))  # most changes are short, and need no steps
    except (ValueError, RecursionError) as error:
        raise SourceError(_NO_JSON) from error


async def _read(work: Steps[ResultT]) -> ResultT:
    """Read in steps, between which others have their turns."""
    try:
        return await between_others(work)
    except ValueError as error:
        raise SourceError(_NO_JSON) from error


def _read_list(body: bytes, take: Callable[[object], None]) -> Steps[Mapping[str, object]]:
    """Hand the items of a list on one by one, so that there is no tree of all of them. Returns what
    else the list has."""
    reader = JsonReader(body)
    if reader.peek() != "{":
        return _mapping((yield from _read_whole(reader)))
    others = {}
    for name in reader.members("{"):
        if name == "items" and reader.peek() == "[":
            for _ in reader.members("["):
                take((yield from _read_value(reader)))
                yield  # to take a slice lasts up to four milliseconds
        else:
            others[name] = yield from _read_value(reader)
    reader.finish()
    return others


def _read_whole(reader: JsonReader) -> Steps[object]:
    value = yield from _read_value(reader)
    reader.finish()
    return value


def _read_value(reader: JsonReader) -> Steps[object]:
    reader.room = _MOST_PARTS
    value: object = yield from reader.value()
    return value


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _reason(error: Exception, timeout_s: float) -> str:
    """Why there is no answer, in the same words every time."""
    if isinstance(error, TimeoutError):
        return f"the API has not answered within {timeout_s:g}s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the API has not the certificate that it should have: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"the API cannot be reached: {error.os_error.strerror or error.os_error}"
    return f"the connection to the API broke off: {str(error) or type(error).__name__}"
