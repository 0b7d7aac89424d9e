"""An API server of Kubernetes that knows EndpointSlices: lists in pages, watches with resume and
bookmarks, versions that are forgotten, tokens and rights, and everything that breaks."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from lb.discovery.kubernetes_login import Login
from tests.fakes.certificates import Authority, Pair

Object = dict[str, Any]
FIRST_VERSION = 1000


@dataclass(frozen=True)
class Event:
    """One entry of the history."""

    version: int
    namespace: str
    before: Object | None
    after: Object | None


def endpoint(
    address: str,
    pod: str = "",
    *,
    uid: str = "",
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> Object:
    """An endpoint of a slice; a pod's conditions as its controller sets them."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    found: Object = {
        "addresses": [address],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
    }
    if pod:
        target = {"kind": "Pod", "name": pod, "namespace": "serving", "uid": uid or f"uid-{pod}"}
        found["targetRef"] = target
    return found


def leaving(address: str, pod: str = "", *, serving: bool = True) -> Object:
    """An endpoint whose pod terminates."""
    return endpoint(address, pod, ready=False, serving=serving, terminating=True)


def ports(**numbers: int) -> list[Object]:
    """Named ports of a slice."""
    return [{"name": name, "port": number, "protocol": "TCP"} for name, number in numbers.items()]


def matches(selector: str, labels: dict[str, str]) -> bool:
    """Whether labels fulfil a selector of equalities, inequalities and names."""
    for term in filter(None, selector.split(",")):
        if "!=" in term:
            name, _, value = term.partition("!=")
            if labels.get(name) == value:
                return False
        elif "=" in term:
            name, _, value = term.replace("==", "=").partition("=")
            if labels.get(name) != value:
                return False
        elif (term.startswith("!")) == (term.lstrip("!") in labels):
            return False
    return True


class KubernetesApi:
    """The server, and what it knows."""

    def __init__(self) -> None:
        self.port = 0
        self.version = FIRST_VERSION
        self.tokens: set[str] = set()
        """That may list and watch; empty: everybody may."""
        self.is_forbidden = False
        """By their rights."""
        self.trouble: int | None = None
        """A status that every request gets."""
        self.is_silent = False
        """Requests get no answer."""
        self.gone_as_event = True
        """Watches of a version that is forgotten begin, and say so by an event."""
        self.lists = 0
        self.watches = 0
        self.asked: list[dict[str, str]] = []
        """The query of each request."""
        self.open: set[web.StreamResponse] = set()
        """Watches."""
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[Event] = []
        self._oldest = FIRST_VERSION
        """What is older is forgotten."""
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._tokens = itertools.count()
        self._news = asyncio.Event()
        self._extra: dict[web.StreamResponse, list[Object]] = {}
        self._cut: set[web.StreamResponse] = set()
        self._server: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._tls: ssl.SSLContext | None = None

    # What a cluster does

    def put(
        self,
        name: str,
        endpoints: list[Object],
        *,
        service: str = "triton",
        numbers: dict[str, int] | None = None,
        family: str = "IPv4",
        namespace: str = "serving",
        labels: dict[str, str] | None = None,
    ) -> None:
        """Make or change a slice."""
        self.put_object(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "labels": {"kubernetes.io/service-name": service, **(labels or {})},
                },
                "addressType": family,
                "ports": ports(**(numbers or {"http": 8000, "grpc": 8001, "metrics": 8002})),
                "endpoints": endpoints,
            }
        )

    def put_object(self, item: Object) -> None:
        """Make or change a slice that is given as a whole."""
        metadata = item["metadata"]
        self._write((metadata["namespace"], metadata["name"]), copy.deepcopy(item))

    def remove(self, name: str, namespace: str = "serving") -> None:
        """Remove a slice."""
        self._write((namespace, name), None)

    def forget(self) -> None:
        """Forget the history, so that a watch from an older version is refused."""
        self._history.clear()
        self._oldest = self.version

    def skip(self, versions: int) -> None:
        """Let other objects change."""
        self.version += versions

    def bookmark(self) -> None:
        """Tell every watch which version it has come to."""
        mark = {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": str(self.version), "creationTimestamp": None},
        }
        self.tell_all({"type": "BOOKMARK", "object": mark})

    def tell_all(self, event: Object) -> None:
        """Tell every watch something."""
        for each in self.open:
            self._extra.setdefault(each, []).append(event)
        self._wake()

    def cut(self) -> None:
        """Break every watch off."""
        self._cut |= self.open
        self._wake()

    def _write(self, key: tuple[str, str], after: Object | None) -> None:
        self.version += 1
        before = self._objects.pop(key, None)
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = after
        elif before is not None:
            before = copy.deepcopy(before)
            before["metadata"]["resourceVersion"] = str(self.version)
        self._history.append(Event(self.version, key[0], before, after))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # What it answers

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """aiohttp: any request."""
        self.asked.append(dict(request.query))
        while self.is_silent:
            await self._news.wait()
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        namespace = request.path.split("/")[5]
        if request.query.get("watch") == "true":
            return await self._watch(request, namespace)
        return self._list(request, namespace)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if self.trouble is not None:
            return status(self.trouble, "InternalError", "etcd is not there")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.tokens and (scheme != "Bearer" or token not in self.tokens):
            return status(401, "Unauthorized", "Unauthorized")
        if self.is_forbidden:
            text = 'endpointslices is forbidden: User "x" cannot list resource "endpointslices"'
            return status(403, "Forbidden", text)
        parts = request.path.split("/")
        expected = ["", "apis", "discovery.k8s.io", "v1", "namespaces", parts[5], "endpointslices"]
        if request.method != "GET" or parts != expected:
            return status(404, "NotFound", "the server could not find the requested resource")
        return None

    def _list(self, request: web.BaseRequest, namespace: str) -> web.Response:
        self.lists += 1
        limit = int(request.query.get("limit", 0))
        token = request.query.get("continue")
        if token is None:
            version = self.version
            found = [
                {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
                for (where, _), each in sorted(self._objects.items())
                if where == namespace and self._is_wanted(request, each)
            ]
        else:
            version, found = self._pages.pop(token, (0, []))
            if version < self._oldest:
                return status(410, "Expired", "The provided continue parameter is too old")
        metadata = {"resourceVersion": str(version)}
        page = found[: limit or len(found)]
        if len(page) < len(found):
            metadata["continue"] = f"page-{next(self._tokens)}"
            metadata["remainingItemCount"] = str(len(found) - len(page))
            self._pages[metadata["continue"]] = version, found[len(page) :]
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": metadata,
                "items": page,
            }
        )

    async def _watch(self, request: web.BaseRequest, namespace: str) -> web.StreamResponse:
        self.watches += 1
        seen = int(request.query["resourceVersion"])
        text = f"too old resource version: {seen} ({self._oldest})"
        if seen < self._oldest and not self.gone_as_event:
            return status(410, "Expired", text)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if seen < self._oldest:
            await tell(response, {"type": "ERROR", "object": status_object(410, "Expired", text)})
            return response
        self.open.add(response)
        ends_at = asyncio.get_running_loop().time() + int(request.query["timeoutSeconds"])
        try:
            async with asyncio.timeout_at(ends_at):
                while response not in self._cut:
                    news = self._news
                    for event in self._history:
                        if event.version > seen and event.namespace == namespace:
                            await self._tell(request, response, event)
                    seen = self.version
                    for extra in self._extra.pop(response, ()):
                        await tell(response, extra)
                    await news.wait()
        except TimeoutError:
            return response
        finally:
            self.open.discard(response)
            self._cut.discard(response)
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _tell(
        self, request: web.BaseRequest, response: web.StreamResponse, event: Event
    ) -> None:
        """A change as this watch sees it: by labels, objects come into it and leave it."""
        was = event.before is not None and self._is_wanted(request, event.before)
        now = event.after is not None and self._is_wanted(request, event.after)
        if now:
            await tell(response, {"type": "MODIFIED" if was else "ADDED", "object": event.after})
        elif was:
            left = copy.deepcopy(event.before or {})
            left["metadata"]["resourceVersion"] = str(event.version)
            await tell(response, {"type": "DELETED", "object": left})

    def _is_wanted(self, request: web.BaseRequest, item: Object) -> bool:
        return matches(request.query.get("labelSelector", ""), item["metadata"]["labels"])

    # Whether it is there

    @property
    def login(self) -> Login:
        """How to talk with it over plain HTTP."""
        return Login(f"http://127.0.0.1:{self.port}", "serving")

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, on the same port every time."""
        self._tls = tls or self._tls
        server = web.Server(self.answer, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be gone, watches and all."""
        self.cut()
        self.is_silent = False
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def tell(response: web.StreamResponse, event: Object) -> None:
    """Write an event of a watch: a line."""
    await response.write(json.dumps(event).encode() + b"\n")


def status_object(code: int, reason: str, message: str) -> Object:
    """How the API says that something is wrong."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def status(code: int, reason: str, message: str) -> web.Response:
    """The same as an answer."""
    return web.json_response(status_object(code, reason, message), status=code)


def server_context(authority: Authority, pair: Pair, folder: Any) -> ssl.SSLContext:
    """TLS of the API, which asks for certificates of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.write(folder, "api"))
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def until(is_so: Callable[[], object]) -> None:
    """Return soon after `is_so`; fail the test when that takes too long."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        while not is_so():
            tick = asyncio.Event()
            loop.call_later(0.005, tick.set)
            await tick.wait()


@asynccontextmanager
async def kubernetes_api() -> AsyncIterator[KubernetesApi]:
    """A plain one on a free port."""
    api = KubernetesApi()
    await api.start()
    try:
        yield api
    finally:
        await api.stop()
