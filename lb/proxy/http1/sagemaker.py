"""The port for Amazon SageMaker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

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
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.http1.answers import PHRASES, Answer
from lb.proxy.http1.asked import AskedRequest, end_to_end
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.front import Front, FrontDecision
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.watched import guard
from lb.wire.http1.body import Payload
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

    chooses_variants: ClassVar[bool] = True

    def __init__(self, relay: Http1Shared, routes: SageMakerRoutes) -> None:
        super().__init__(relay)
        self.shelf = Shelf()
        self._routes = routes
        self._arrange_inference = invoke if routes.inference == b"infer" else None

    def read(self, head: bytes, request: FrontRequest) -> FrontDecision:
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
                arrange=invoke_model,
            )
        is_ping = request.path == b"/ping"
        arrange = None if is_ping else self._arrange_inference
        return self.forwarded(head, request, meaning, arrange=arrange)

    def _managed(self, head: bytes, request: FrontRequest, asked: Manage) -> FrontDecision:
        name = asked.name
        if asked.action is Action.LIST:
            return self.forwarded(head, request, _INDEX, answer=self._list)
        if asked.action is Action.DESCRIBE:
            return self.forwarded(head, request, _INDEX, answer=lambda: self._describe(name))
        if asked.action is Action.LOAD:
            return self.forwarded(
                head, request, _LOAD, answer=self._unable, arrange=self._managing(request.model)
            )
        return self.forwarded(
            head,
            request,
            Forward(b"POST", b"/v2/repository/models/%b/unload" % name),
            answer=lambda: self.unless_loaded(name) or self._unable(),
            arrange=self._managing(name),
        )

    def _managing(self, subject: bytes) -> Callable[[Http1Exchange], None]:
        def arrange(exchange: Http1Exchange) -> None:
            fan_out = exchange.relay.parts.fan_out
            if fan_out is not None:
                ask = Management(self.shelf, subject).ask
                exchange.handler = AskedRequest(exchange, fan_out, ask)

        return arrange

    def _unable(self) -> Answer | None:
        return Answer(501) if self.relay.parts.fan_out is None else None

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


def invoke(exchange: Http1Exchange) -> None:
    """It is an inference whose answer has SageMaker's content type."""
    guard(exchange)
    exchange.form = InvocationForm()


def invoke_model(exchange: Http1Exchange) -> None:
    """It is an inference of one of many models, whose errors have SageMaker's status, too."""
    guard(exchange)
    exchange.form = ModelInvocationForm()


class InvocationForm:
    """Answers with SageMaker's content type."""

    __slots__ = ("changes_all",)

    def __init__(self) -> None:
        self.changes_all = False

    def take(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        """See `AnswerForm`."""
        return head, pieces

    def rewrite(self, head: ResponseHead, message: bytes) -> tuple[int, bytes]:
        """See `AnswerForm`."""
        return head.status, front_answer_head(message)


class ModelInvocationForm:
    """Answers with SageMaker's content type, and errors with its status, which is in their text."""

    __slots__ = ("_error", "_held_head", "changes_all")

    def __init__(self) -> None:
        self.changes_all = False
        self._error = b""
        self._held_head: ResponseHead | None = None
        """The head of an error whose text has not come yet."""

    def take(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        """See `AnswerForm`."""
        if head is not None:
            self._error = b""
            self._held_head = head if head.is_error else None
        held_head = self._held_head
        if held_head is None:
            return head, pieces
        self._error += b"".join(pieces)
        if not ended and len(self._error) < ERROR_BYTES:
            return None
        self._held_head = None
        return held_head, [self._error]

    def rewrite(self, head: ResponseHead, message: bytes) -> tuple[int, bytes]:
        """See `AnswerForm`."""
        message = front_answer_head(message)
        if not head.is_error:
            return head.status, message
        status = error_status(self._error)
        rest = message.partition(b"\r\n")[2]
        return status, b"HTTP/1.1 %d %b\r\n%b" % (status, PHRASES.get(status, b""), rest)


class Management:
    """A load or unload, put to the fan-out as the v2 call that it stands for."""

    __slots__ = ("_shelf", "_subject")

    def __init__(self, shelf: Shelf, subject: bytes) -> None:
        """
        Args:
            shelf: which models SageMaker had loaded.
            subject: what SageMaker calls the model to unload; the name on the backends of one to
                load, or nothing.
        """
        self._shelf = shelf
        self._subject = subject

    async def ask(self, request: AskedRequest, body: bytes) -> None:
        """Do what the request asks for, and answer it."""
        if request.exchange.plan.operation.name == _LOADING:
            await self._load(request, body)
        else:
            await self._unload(request)

    async def _load(self, request: AskedRequest, body: bytes) -> None:
        shelf = self._shelf
        try:
            name, loaded = read_load(body, self._subject)
        except ValueError as fault:
            _refuse(request.exchange, 400, str(fault))
            return
        if shelf.find(name) is not None:
            _refuse(
                request.exchange, 409, f"failed to register '{loaded.url}', it is already loaded"
            )
        elif shelf.is_full:
            _refuse(request.exchange, 507, "out of memory: too many models are loaded")
        else:
            reply = await _put(request, loaded.model, b"load", b"{}")
            if reply.status < 300:
                shelf.add(name, loaded)
            _give(request.exchange, reply)

    async def _unload(self, request: AskedRequest) -> None:
        shelf = self._shelf
        loaded = shelf.find(self._subject)
        if loaded is None:
            _say(request.exchange, Answer(404))
        else:
            reply = await _put(request, loaded.model, b"unload", _UNLOAD_BODY)
            if reply.status < 300:
                await _wait_until_unloaded(request, loaded.model)
                shelf.remove(self._subject)
            _give(request.exchange, reply)


async def _wait_until_unloaded(request: AskedRequest, model: bytes) -> None:
    """A Triton unloads after it has answered; SageMaker takes the answer for the end."""
    for _ in range(_UNLOAD_LOOKS):
        index = FanOutRequest(
            protocol=request.exchange.protocol,
            operation=REPOSITORY_INDEX,
            model=b"",
            method=b"POST",
            target=_INDEX.target,
            fields=end_to_end(request.head),
            client=request.exchange.client_key,
            body=b"",
        )
        reply = await request.fan_out.ask(index)
        if request.exchange.server is None or is_unloaded(reply.body, model):
            return
        await asyncio.sleep(_UNLOAD_PAUSE_S)


async def _put(request: AskedRequest, model: bytes, verb: bytes, body: bytes) -> FanOutReply:
    """Ask all backends."""
    request.exchange.model = model
    return await request.fan_out.ask(
        FanOutRequest(
            protocol=request.exchange.protocol,
            operation=request.exchange.plan.operation,
            model=model,
            method=b"POST",
            target=b"/v2/repository/models/%b/%b" % (model, verb),
            fields=end_to_end(request.head),
            client=request.exchange.client_key,
            body=body,
        )
    )


def _give(exchange: Http1Exchange, reply: FanOutReply) -> None:
    """Tell SageMaker how it ended."""
    exchange.attempts = len(reply.backends)
    status = load_status(reply.status, reply.body)
    answer = b"" if status == 200 else masked(reply.body)
    _say(exchange, Answer(status, answer, reply.reason, content_type=_TEXT))


def _refuse(exchange: Http1Exchange, status: int, detail: str) -> None:
    _say(exchange, Answer(status, http_body(detail), content_type=_TEXT))


def _say(exchange: Http1Exchange, answer: Answer) -> None:
    if exchange.server is not None:  # else nobody waits any more
        exchange.answer(answer)
