"""The port for Amazon SageMaker."""

from __future__ import annotations

import asyncio
from typing import Final

from lb.kserve.errors import ERROR_BYTES
from lb.kserve.fronts import Forward, FrontRequest, Own
from lb.kserve.gate import masked
from lb.kserve.operations import REPOSITORY_INDEX
from lb.kserve.sagemaker import (
    Action,
    Invoke,
    Manage,
    SageMakerRoutes,
    Shelf,
    error_status,
    front_answer_head,
    is_unloaded,
    load_status,
    read_load,
    translate,
)
from lb.proxy.failure import http_body
from lb.proxy.fan_out.question import Question, Reply
from lb.proxy.http1.answers import PHRASES, Answer
from lb.proxy.http1.asked import AskedExchange, end_to_end
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.front import Front, MakeExchange, Turn
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http1.server import ServerConnection
from lb.proxy.http1.watched import WatchedExchange
from lb.wire.http1.body import BodyDecoder, Payload
from lb.wire.http1.response import ResponseHead

_TEXT: Final = b"text/plain"
_INDEX: Final = Forward(b"POST", b"/v2/repository/index")
_LOAD: Final = Forward(b"POST", b"/v2/repository/models/-/load")
"""The body says which model."""
_UNLOAD_PAUSE_S: Final = 0.25
_UNLOAD_LOOKS: Final = 1400
"""Until 350 s are over: SageMaker waits for 360."""
_LOADING: Final = "RepositoryModelLoad"
_UNLOAD_BODY: Final = b'{"parameters":{"unload_dependents":true}}'


class SageMakerFront(Front):
    """Translates requests of SageMaker, and remembers which models it had loaded."""

    def __init__(self, relay: Http1Relay, routes: SageMakerRoutes) -> None:
        super().__init__(relay)
        self.shelf = Shelf()
        self._routes = routes
        self._make_inference = InvocationExchange if routes.inference == b"infer" else None

    def read(self, head: bytes, request: FrontRequest) -> Turn:
        """See `Front`."""
        meaning = translate(self._routes, request)
        if isinstance(meaning, Own):
            return self.answered(head, request, meaning.status, meaning.body)
        if isinstance(meaning, Manage):
            return self._managed(head, request, meaning)
        if isinstance(meaning, Invoke):
            name = meaning.name
            return self.forwarded(
                head,
                request,
                meaning.forward,
                answer=lambda: self.unless_loaded(name),
                make=ModelInvocationExchange,
            )
        is_ping = request.path == b"/ping"
        make = None if is_ping else self._make_inference
        return self.forwarded(head, request, meaning, make=make)

    def _managed(self, head: bytes, request: FrontRequest, asked: Manage) -> Turn:
        name = asked.name
        if asked.action is Action.LIST:
            return self.forwarded(head, request, _INDEX, answer=self._list)
        if asked.action is Action.DESCRIBE:
            return self.forwarded(head, request, _INDEX, answer=lambda: self._describe(name))
        if asked.action is Action.LOAD:
            return self.forwarded(
                head, request, _LOAD, answer=self._unable, make=self._managing(request.model)
            )
        return self.forwarded(
            head,
            request,
            Forward(b"POST", b"/v2/repository/models/%b/unload" % name),
            answer=lambda: self.unless_loaded(name) or self._unable(),
            make=self._managing(name),
        )

    def _managing(self, subject: bytes) -> MakeExchange:
        def make(
            relay: Http1Relay, server: ServerConnection, plan: RequestPlan, now: float
        ) -> Http1Exchange:
            if relay.fan_out is None:
                return Http1Exchange(relay, server, plan, now)
            exchange = ManagingExchange(relay, server, plan, now, relay.fan_out)
            exchange.front, exchange.subject = self, subject
            return exchange

        return make

    def _unable(self) -> Answer | None:
        return Answer(501) if self.relay.fan_out is None else None

    def unless_loaded(self, name: bytes) -> Answer | None:
        """The answer about a model that is not."""
        return None if self.shelf.find(name) else Answer(404)

    def _list(self) -> Answer:
        routes = self.relay.dispatcher.pool.current.routes
        ready = frozenset(name for name, route in routes.items() if route.is_ready)
        return Answer(200, self.shelf.listing(ready), content_type=_TEXT)

    def _describe(self, name: bytes) -> Answer:
        found = self.shelf.description(name)
        return Answer(404) if found is None else Answer(200, found, content_type=_TEXT)


class InvocationExchange(WatchedExchange):
    """An inference whose answer has SageMaker's content type."""

    __slots__ = ()

    def on_whole_answer(self, head: ResponseHead, data: bytes, end: int) -> None:
        """Relay an answer that came in one read; its head is never right as it came."""
        self._on_answer_slowly(head, data, end)

    def _begin_answer(self, head: ResponseHead, now: float, message: list[Payload]) -> None:
        super()._begin_answer(head, now, message)
        message[-1] = front_answer_head(bytes(message[-1]))


class ModelInvocationExchange(InvocationExchange):
    """An inference of one of many models, whose errors have SageMaker's status, too."""

    __slots__ = ("_error", "_held_head")

    _held_head: ResponseHead | None
    """Of an error whose text has not come yet."""

    def on_answer(
        self,
        head: ResponseHead | None,
        pieces: list[Payload],
        decoder: BodyDecoder,
        *,
        reusable: bool,
    ) -> None:
        """Relay a part of the answer. Of an error the text comes first: the status is in it."""
        if head is not None:
            self._error = b""
            self._held_head = head if head.is_error else None
        held_head = self._held_head
        if held_head is not None:
            self._error += b"".join(pieces)
            if not decoder.ended and len(self._error) < ERROR_BYTES:
                return
            self._held_head = None
            head, pieces = held_head, [self._error]
        super().on_answer(head, pieces, decoder, reusable=reusable)

    def on_middle(self, data: bytes) -> bool:
        """See `Http1Exchange`."""
        return self._held_head is None and super().on_middle(data)

    @property
    def answer_passes(self) -> bool:
        """See `Http1Exchange`."""
        return self._held_head is None and super().answer_passes

    def on_whole_chunk(self, data: bytes, start: int) -> bool:
        """See `Http1Exchange`."""
        return self._held_head is None and super().on_whole_chunk(data, start)

    def _begin_answer(self, head: ResponseHead, now: float, message: list[Payload]) -> None:
        super()._begin_answer(head, now, message)
        if head.is_error:
            self.status = status = error_status(self._error)
            rest = bytes(message[-1]).partition(b"\r\n")[2]
            message[-1] = b"HTTP/1.1 %d %b\r\n%b" % (status, PHRASES.get(status, b""), rest)


class ManagingExchange(AskedExchange):
    """A load or unload, put to the fan-out as the v2 call that it stands for."""

    __slots__ = ("front", "subject")

    front: SageMakerFront
    subject: bytes
    """What SageMaker calls the model to unload; the name on the backends of one to load, or
    nothing."""

    async def _ask(self, body: bytes) -> None:
        if self.plan.operation.name == _LOADING:
            await self._load(body)
        else:
            await self._unload()

    async def _load(self, body: bytes) -> None:
        shelf = self.front.shelf
        try:
            name, loaded = read_load(body, self.subject)
        except ValueError as fault:
            self._refuse(400, str(fault))
            return
        if shelf.find(name) is not None:
            self._refuse(409, f"failed to register '{loaded.url}', it is already loaded")
        elif shelf.is_full:
            self._refuse(507, "out of memory: too many models are loaded")
        else:
            reply = await self._put(loaded.model, b"load", b"{}")
            if reply.status < 300:
                shelf.add(name, loaded)
            self._give(reply)

    async def _unload(self) -> None:
        shelf = self.front.shelf
        loaded = shelf.find(self.subject)
        if loaded is None:
            self._say(Answer(404))
        else:
            reply = await self._put(loaded.model, b"unload", _UNLOAD_BODY)
            if reply.status < 300:
                await self._wait_until_unloaded(loaded.model)
                shelf.remove(self.subject)
            self._give(reply)

    async def _wait_until_unloaded(self, model: bytes) -> None:
        """A Triton unloads after it has answered; SageMaker takes the answer for the end."""
        for _ in range(_UNLOAD_LOOKS):
            index = Question(
                protocol=self.protocol,
                operation=REPOSITORY_INDEX,
                model=b"",
                method=b"POST",
                target=_INDEX.target,
                fields=end_to_end(self._head),
                body=b"",
            )
            reply = await self._fan_out.ask(index)
            if self.server is None or is_unloaded(reply.body, model):
                return
            await asyncio.sleep(_UNLOAD_PAUSE_S)

    async def _put(self, model: bytes, verb: bytes, body: bytes) -> Reply:
        """Ask all backends."""
        self.model = model
        return await self._fan_out.ask(
            Question(
                protocol=self.protocol,
                operation=self.plan.operation,
                model=model,
                method=b"POST",
                target=b"/v2/repository/models/%b/%b" % (model, verb),
                fields=end_to_end(self._head),
                body=body,
            )
        )

    def _give(self, reply: Reply) -> None:
        """Tell SageMaker how it ended."""
        self.attempts = len(reply.backends)
        status = load_status(reply.status, reply.body)
        answer = b"" if status == 200 else masked(reply.body)
        self._say(Answer(status, answer, reply.reason, content_type=_TEXT))

    def _refuse(self, status: int, detail: str) -> None:
        self._say(Answer(status, http_body(detail), content_type=_TEXT))

    def _say(self, answer: Answer) -> None:
        if self.server is not None:  # else nobody waits any more
            self.answer(answer)
