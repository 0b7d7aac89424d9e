"""Putting a question to one backend, in a protocol that it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from lb.domain.backend import AppProtocol, Backend, BackendSpec
from lb.domain.control import Reach
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.kserve.conversion import read_body, to_http, to_message
from lb.kserve.messages import SERVICE
from lb.net.ask.backend_client import BackendClient, Keep
from lb.net.ask.client_call import Fields
from lb.net.threads import computed
from lb.proxy.failure import http_body
from lb.proxy.fan_out.question import FanOutRequest
from lb.proxy.fan_out.result import Result, answered_grpc, answered_http, unanswered
from lb.wire.grpc.status import GrpcStatus
from lb.wire.hops import HOPS

_OWN: Final = frozenset({b"accept-encoding", b"grpc-accept-encoding"})
"""Answers have to be read here."""
_CROSSING: Final = (b"authorization", b"triton-", HOPS)
"""Fields, or what they begin with, that mean the same in the other protocol."""
_LOAD: Final = "RepositoryModelLoad"
_INDEX: Final = b"/v2/repository/index"
_ADMITTED_S: Final = 2.0
_PLAIN_LOAD: Final = re.compile(rb"/v2/repository/models/[^/?]+/load")
_RESTRICTED: Final = "This protocol is restricted"
"""What a Triton says over gRPC to who has not the key; HTTP's has another name."""
_ENCODING: Final = b"content-encoding"


def protocol_for(reach: Reach, question: FanOutRequest) -> AppProtocol:
    """In which protocol to ask: the client's, where the backend answers in it."""
    if reach.answers(question.protocol):
        return question.protocol
    return AppProtocol(1 - question.protocol)


def _stops_others(question: FanOutRequest, reach: Reach) -> bool:
    """Whether it is a load over HTTP that can go over gRPC.

    A Triton holds a thread of its HTTP server until the model is there, and with it all other
    connections on that thread (docs/decisions/0017-model-tables.md).
    """
    return (
        question.protocol is AppProtocol.HTTP
        and question.operation.name == _LOAD
        and all(reach.open)
    )


def _is_alike(target: bytes, body: bytes) -> bool:
    """Whether Triton reads a load alike in both protocols, and so answers alike."""
    if _PLAIN_LOAD.fullmatch(target) is None:
        return False
    try:
        parameters = read_body(body).get("parameters", {})
    except ValueError:
        return False
    return isinstance(parameters, dict) and all(
        isinstance(value, str) and (name == "config" or name.startswith("file:"))
        for name, value in parameters.items()
    )


class Calls:
    """Asks what a client asks, with its fields and no key of ours; whatever happens is a result."""

    def __init__(self, backend_client: BackendClient, clock: Callable[[], float]) -> None:
        self._backend_client = backend_client
        self._clock = clock

    async def put(
        self, question: FanOutRequest, reach: Reach, timeout_s: float, keep: Keep
    ) -> Result:
        """Put a question to one backend that is reachable."""
        backend, protocol = reach.backend, protocol_for(reach, question)
        try:
            if _stops_others(question, reach) and await self._is_admitted(question, backend):
                return await self._load(question, backend, timeout_s, keep)
            if protocol is AppProtocol.HTTP:
                return await self._over_http(question, backend, timeout_s, keep)
            return await self._over_grpc(question, backend, timeout_s, keep)
        except UpstreamError as error:
            return unanswered(backend, protocol, error)
        except ValueError as error:
            return _unspeakable(backend, protocol, str(error))

    async def _load(
        self, question: FanOutRequest, backend: Backend, timeout_s: float, keep: Keep
    ) -> Result:
        """Carry a load over gRPC, unless that cannot say the same or needs another key."""
        if not await _reads_alike(question):
            return await self._over_http(question, backend, timeout_s, keep)
        try:
            result = await self._over_grpc(question, backend, timeout_s, keep)
        except ValueError:
            return await self._over_http(question, backend, timeout_s, keep)
        if result.detail.startswith(_RESTRICTED):
            return await self._over_http(question, backend, timeout_s, keep)
        return result

    async def _is_admitted(self, question: FanOutRequest, backend: Backend) -> bool:
        """Whether the client may control models over HTTP: a server may restrict that alone."""
        fields = _without_own(question.fields)
        try:
            answer = await self._backend_client.http(
                _without_key(backend.spec), b"POST", _INDEX, fields, timeout_s=_ADMITTED_S
            )
        except UpstreamError:
            return False
        return answer.status == HTTPStatus.OK

    async def _over_http(
        self, question: FanOutRequest, backend: Backend, timeout_s: float, keep: Keep
    ) -> Result:
        method, target, body = question.method, question.target, question.body
        fields = question.fields
        if question.protocol is AppProtocol.GRPC:
            method, fields = b"POST", _crossing(fields)
            target, body = await computed(to_http, question.operation.name, body)
        asked_at = self._clock()
        answer = await self._backend_client.http(
            _without_key(backend.spec),
            method,
            target,
            _without_own(fields),
            body,
            timeout_s=timeout_s,
            keep=keep,
        )
        return answered_http(backend, answer, asked_at, self._clock())

    async def _over_grpc(
        self, question: FanOutRequest, backend: Backend, timeout_s: float, keep: Keep
    ) -> Result:
        path, message, fields = question.target, question.body, question.fields
        if question.protocol is AppProtocol.HTTP:
            if any(name == _ENCODING for name, _ in fields):
                raise ValueError("a compressed request cannot be put into the other protocol")
            path = f"/{SERVICE}/{question.operation.name}".encode()
            message = await _as_message(question)
            fields = _crossing(fields)
        asked_at = self._clock()
        answer = await self._backend_client.grpc(
            _without_key(backend.spec),
            path,
            message,
            _without_own(fields),
            timeout_s=timeout_s,
            keep=keep,
        )
        return answered_grpc(backend, answer, asked_at, self._clock())


async def _reads_alike(question: FanOutRequest) -> bool:
    found = question.conversion
    async with found.lock:
        if found.is_alike is None:
            found.is_alike = await computed(_is_alike, question.target, question.body)
        return found.is_alike


async def _as_message(question: FanOutRequest) -> bytes:
    """The gRPC message that says what an HTTP request says.

    Raises:
        ValueError: nothing does, or it is too long.
    """
    found = question.conversion
    async with found.lock:
        if found.message is None:
            name = question.operation.name
            found.message = await computed(to_message, name, question.target, question.body)
        return found.message


def gave_up(reach: Reach, question: FanOutRequest) -> Result:
    """The result of a backend that went down while it was waited for."""
    error = UpstreamError(Outcome.LOST, "went down before it answered")
    return unanswered(reach.backend, protocol_for(reach, question), error)


def _unspeakable(backend: Backend, protocol: AppProtocol, detail: str) -> Result:
    """The result of a backend that cannot be asked such a thing."""
    if protocol is AppProtocol.GRPC:
        status = int(GrpcStatus.INVALID_ARGUMENT)
        return Result(backend=backend, protocol=protocol, status=status, detail=detail)
    return Result(
        backend=backend, protocol=protocol, status=400, body=http_body(detail), detail=detail
    )


def _without_key(spec: BackendSpec) -> BackendSpec:
    """A backend as its clients see it: its `headers` may open what is closed to them."""
    return replace(spec, headers=())


def _without_own(fields: Fields) -> Fields:
    return tuple(field for field in fields if field[0] not in _OWN)


def _crossing(fields: Fields) -> Fields:
    return tuple(field for field in fields if field[0].startswith(_CROSSING))
