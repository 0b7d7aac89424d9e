"""A scripted backend beside the Tritons, which does what no Triton does: it breaks the protocols.

It is well until it is told otherwise. Then it misbehaves on a share of the inferences that it gets,
each time in another way, all of which end before an answer has begun: nobody may lose a request.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from lb.kserve import inference_pb2 as pb
from tests.fakes.process import free_ports
from tests.triton.target import Target
from tests.wire import frames as fr
from tests.wire import http1 as h1
from tests.wire.http2 import Peer, raw_backend

NAME = "scripted"
MODEL = "ledger"
_SERVICE_S = 0.05
_CONFIG = {"name": MODEL, "platform": "python", "backend": "python", "max_batch_size": 0}
_CALLS_PER_CONNECTION = 5
"""Of a backend that lets its connections go."""
_PREFIX = 5
"""Bytes before each message of gRPC."""

BREAKS, CHURNS = "breaks", "churns"
"""What it may be told: break the protocols on a third of the inferences; end connections all the
time, as it may."""
_SHARE = 1 / 3


class Rogue:
    """The backend, on one port per protocol."""

    def __init__(self, records: Path, rng: Random) -> None:
        self.conduct = ""
        """`BREAKS`, `CHURNS`, or well."""
        self.name = NAME
        self.metrics_port = free_ports(1)[0]
        """Nobody listens there."""
        self.target = Target("", "")
        self._rng = rng
        self._ledger = records / f"executions-{NAME}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rogue]:
        """Serve while the block runs."""
        async with (
            h1.scripted_backend(self._http) as http,
            raw_backend(lambda _: self._grpc) as grpc,
        ):
            self.target = Target(http.target, grpc.target)
            yield self

    def _note(self, request_id: str) -> None:
        with self._ledger.open("a") as file:
            file.write(f"{request_id} began {time.monotonic()}\n")

    @property
    def _misbehaves(self) -> bool:
        return self.conduct == BREAKS and self._rng.random() < _SHARE

    # HTTP/1.1

    async def _http(self, peer: h1.Peer) -> None:
        while True:
            request = await peer.request()
            peer.backend.requests.clear()
            if not request.target.endswith(b"/infer"):
                await peer.send(_answer_of(request.target))
                continue
            length = int(request.field(b"inference-header-content-length") or len(request.body))
            asked = json.loads(request.body[:length])
            self._note(asked["id"])
            if self._misbehaves:
                await self._rng.choice(_HTTP_MISDEEDS)(peer)
                return
            await asyncio.sleep(_SERVICE_S)
            size = asked["inputs"][-1]["parameters"]["binary_data_size"]
            said = {"ECHO": _echo(asked["id"], request.body[-size:]), "SERVER": NAME}
            outputs = [
                {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
                for name, value in said.items()
            ]
            body = {"model_name": MODEL, "id": asked["id"], "outputs": outputs}
            await peer.send(h1.reply(json.dumps(body).encode()))
            if self.conduct == CHURNS:
                return

    # gRPC

    async def _grpc(self, peer: Peer) -> None:
        answered: set[int] = set()
        last = 0  # stream that is answered, once GOAWAY has told it
        while (found := await _next(peer)) is not None:
            peer.seen.clear()
            if found.stream not in peer.ended or found.stream in answered:
                continue
            answered.add(found.stream)
            path = dict(peer.heads[found.stream][0])[b":path"].rpartition(b"/")[2]
            body = bytes(peer.bodies.pop(found.stream, b""))[_PREFIX:]
            if path != b"ModelInfer":
                peer.send(_reply(found.stream, _answer_of_method(path)))
            elif not last or found.stream <= last:
                self._infer(peer, found.stream, pb.ModelInferRequest.FromString(body))
            if self.conduct == CHURNS and len(answered) >= _CALLS_PER_CONNECTION and not last:
                last = found.stream
                peer.send(fr.goaway(last))

    def _infer(self, peer: Peer, stream: int, asked: pb.ModelInferRequest) -> None:
        self._note(asked.id)
        if self._misbehaves:
            self._rng.choice(_GRPC_MISDEEDS)(peer, stream)
            return
        answer = pb.ModelInferResponse(model_name=MODEL, id=asked.id)
        for name, value in (
            ("ECHO", _echo(asked.id, asked.raw_input_contents[-1])),
            ("SERVER", NAME),
        ):
            answer.outputs.add(name=name, datatype="BYTES", shape=[1])
            answer.raw_output_contents.append(len(value).to_bytes(4, "little") + value.encode())
        reply = _reply(stream, answer.SerializeToString())
        asyncio.get_running_loop().call_later(_SERVICE_S, peer.send, reply)


async def _next(peer: Peer) -> fr.Frame | None:
    while True:
        try:
            return await peer.next()
        except TimeoutError:
            pass  # nobody asks at the moment


def _echo(request_id: str, content: bytes) -> str:
    """What the model answers; the payload is the last tensor."""
    return f"{request_id}:{zlib.crc32(content)}"


# What it says of itself

_LIST = [{"name": MODEL, "version": "1", "state": "READY"}]
_SERVER = {"name": "triton", "version": "2.51.0", "extensions": ["model_repository"]}


def _answer_of(target: bytes) -> bytes:
    """To anything but an inference."""
    if target.startswith(b"/v2/health/") or target.endswith(b"/ready"):
        return h1.reply(b"")
    known: Mapping[bytes, Any] = {
        b"/v2": _SERVER,
        b"/v2/repository/index": _LIST,
        b"/v2/models/ledger/config": _CONFIG,
    }
    if target in known:
        return h1.reply(json.dumps(known[target]).encode())
    return h1.reply(b'{"error": "not found"}', status=b"404 Not Found")


def _answer_of_method(method: bytes) -> bytes | None:
    """The message; None where it does not know the method."""
    answers: Mapping[bytes, Any] = {
        b"ServerLive": pb.ServerLiveResponse(live=True),
        b"ServerReady": pb.ServerReadyResponse(ready=True),
        b"ModelReady": pb.ModelReadyResponse(ready=True),
        b"ServerMetadata": pb.ServerMetadataResponse(**_SERVER),
        b"RepositoryIndex": pb.RepositoryIndexResponse(
            models=[pb.RepositoryIndexResponse.ModelIndex(**each) for each in _LIST]
        ),
        b"ModelConfig": pb.ModelConfigResponse(config=pb.ModelConfig(name=MODEL)),
    }
    if method == b"Check":
        return b"\x08\x01"  # SERVING
    return answers[method].SerializeToString() if method in answers else None


def _reply(stream: int, message: bytes | None) -> bytes:
    if message is None:
        return fr.headers(stream, [*fr.RESPONSE_FIELDS, (b"grpc-status", b"12")], end=True)
    return fr.answer(stream, fr.message(message))


# Misdeeds


def _says(data: bytes) -> Callable[[h1.Peer], Awaitable[None]]:
    """Says that instead of an answer, and hangs up."""

    async def misdeed(peer: h1.Peer) -> None:
        await peer.send(data)

    return misdeed


_HTTP_MISDEEDS: tuple[Callable[[h1.Peer], Awaitable[None]], ...] = (
    _says(b""),
    h1.Peer.reset,
    _says(b"\x15\x03\x01\x00\x02\x02\x28"),
    _says(b"HTTP/1.1 200 OK\r\nContent-Le"),
    _says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    _says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
)


def _sends(make: Callable[[int], bytes], *, hangs_up: bool = False) -> GrpcMisdeed:
    def misdeed(peer: Peer, stream: int) -> None:
        peer.send(make(stream))
        if hangs_up:
            peer.writer.close()

    return misdeed


GrpcMisdeed = Callable[[Peer, int], None]
_GRPC_MISDEEDS: tuple[GrpcMisdeed, ...] = (
    _sends(lambda stream: fr.rst(stream, fr.REFUSED_STREAM)),
    _sends(lambda stream: fr.rst(stream, fr.INTERNAL_ERROR)),
    _sends(lambda stream: fr.goaway(max(0, stream - 2))),
    _sends(lambda _: b"", hangs_up=True),
    _sends(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", hangs_up=True),
    _sends(lambda stream: fr.headers(stream, [(b":status", b"200"), (b"X-Upper", b"1")])),
    _sends(lambda stream: fr.data(stream, b"before its head")),
)
