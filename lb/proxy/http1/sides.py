"""What the parts of an HTTP/1.1 request ask of each other, where one cannot know the other's class.

A client's connection (`server`) makes exchanges, an exchange makes attempts, an attempt has a
connection to a backend (`client`). What goes the other way goes through these.

Those that every request goes through are traits: compiled code finds attributes and methods of a
Protocol by name, which took 12 % of a request. A class has to name a trait among its bases.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Protocol

from lb.domain.client import Client
from lb.domain.outcome import Outcome
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.http1.options import Http1Options
from lb.wire.http1.body import BodyDecoder, Payload
from lb.wire.http1.response import ResponseHead
from lb.wire.memory_budget import Payer
from lb.wire.native import trait


@trait
class ClientSide:
    """A client's connection, as its request sees it. It holds what the client does not read."""

    __slots__ = ()

    held: int
    """See `lb.wire.memory_budget.Holder`."""
    client: Client
    options: Http1Options
    transport: asyncio.Transport | None
    is_full: bool
    is_leaving: bool
    is_plain: bool
    is_reading: bool

    @abstractmethod
    def write(self, pieces: list[Payload]) -> None:
        """Send a part of an answer."""

    @abstractmethod
    def send_answer(self, answer: Answer, plan: RequestPlan) -> None:
        """Send an answer of ours, which ends the exchange."""

    @abstractmethod
    def exchange_over(self, *, keep_alive: bool) -> None:
        """The answer is complete."""

    @abstractmethod
    def truncate(self, *, reset: bool) -> None:
        """End an answer that cannot be completed."""

    @abstractmethod
    def update_reading(self) -> None:
        """Read exactly when what comes can go somewhere."""

    @abstractmethod
    def end_pump(self) -> None:
        """The body has nowhere to go any more."""

    @abstractmethod
    def evict(self) -> None:
        """See `lb.wire.memory_budget.Holder`."""

    @property
    @abstractmethod
    def charged_to(self) -> Payer | None:
        """See `lb.wire.memory_budget.Holder`."""

    @abstractmethod
    def charge(self, size: int) -> bool:
        """Put bytes in the memory budget; False when the connection was evicted instead."""


@trait
class AnswerSink:
    """Whose request a connection to a backend carries: an attempt."""

    __slots__ = ()

    client: ClientSide | None
    plan: RequestPlan

    @property
    @abstractmethod
    def sent_at(self) -> float:
        """When its connection got the request."""

    @abstractmethod
    def on_whole_answer(self, head: ResponseHead, data: bytes, end: int) -> None:
        """An answer came in one read, `data`, with its body from `end` on."""

    @abstractmethod
    def on_interim(self, head: ResponseHead) -> None:
        """A 1xx answer came."""

    @abstractmethod
    def on_answer(
        self,
        head: ResponseHead | None,
        pieces: list[Payload],
        decoder: BodyDecoder,
        *,
        reusable: bool,
    ) -> None:
        """A part of the answer came."""

    @abstractmethod
    def needs_payload(self, head: ResponseHead) -> bool:
        """Whether an answer with that head and without a body is no answer. Nothing of it is to go
        on before there is some."""

    @abstractmethod
    def on_middle(self, data: bytes) -> bool:
        """A read in the middle of a body of known length came. False: it is for `on_answer`."""

    @abstractmethod
    def on_whole_chunks(self, data: bytes, size: int) -> bool:
        """Whole chunks came, with so much payload. False: they are for `on_answer`."""

    @property
    @abstractmethod
    def answer_passes(self) -> bool:
        """Whether what is left of the answer may pass unseen."""

    @abstractmethod
    def count_answer(self, size: int) -> None:
        """Some of the answer has passed unseen."""

    @abstractmethod
    def upload_changed(self) -> None:
        """The backend takes the request more slowly than it comes, or has caught up."""

    @abstractmethod
    def backend_hung(self) -> None:
        """The backend is silent."""

    @abstractmethod
    def failed(self, outcome: Outcome, detail: str) -> None:
        """The connection is closed, and the answer was not complete."""


class RequestTaker(Protocol):
    """Takes the parts of a request as they come: its exchange, or a handler."""

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """The head is complete; this is what there is of the body."""
        ...

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """A further part of the body."""
        ...


class RequestHandler(RequestTaker, Protocol):
    """Takes the parts of a request to look into them before they go on to the exchange, or in its
    place."""

    @property
    def collects(self) -> bool:
        """Whether the exchange gets nothing of it: no backend is waited for."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether what came is to be dealt with before more is read."""
        ...

    def prepare_placing(self) -> bool:
        """Do what is to be done before the request is placed. False: it was answered instead."""
        ...

    def close(self) -> None:
        """Drop what is held: the exchange is over, or its client is gone."""
        ...


class AnswerForm(Protocol):
    """The form in which a client gets answers: that of a hosting platform, or with the name that it
    asked for."""

    changes_all: bool
    """It changes more than the beginning of an answer, and its length."""

    def take(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        """Take a part of an answer, which may be the first one with its head.

        Returns:
            What is to be relayed now; None: nothing before more has come.
        """
        ...

    def rewrite(self, head: ResponseHead, message: bytes) -> tuple[int, bytes]:
        """The status that the client gets, and the head, which would be `message`."""
        ...
