"""Backends that do what plans say, and keep what they got of each attempt."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256

from lb.kserve import inference_pb2 as pb
from tests.against.plans import MODELS, STATEFUL, STREAM_INFER, Act, Reply, Request
from tests.wire.frames import (
    INTERNAL_ERROR,
    PREFACE,
    REFUSED_STREAM,
    FieldPair,
    data,
    headers,
    message,
    rst,
    settings,
)
from tests.wire.http2 import Peer

LEAVE_S = 0.5
"""How long a backend looks whether an attempt is taken back whose client has left."""
_RPC_HEAD: list[FieldPair] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_CONFIG = {"platform": "", "backend": "python", "input": [], "output": []}


def digest(content: bytes) -> str:
    """Long content in a comparison: its length and some of its hash."""
    if len(content) <= 200:
        return repr(content)
    return f"{len(content)} bytes, {sha256(content).hexdigest()[:12]}"


class Registry:
    """The requests under way, by id, and what backends saw of them. One per tree."""

    def __init__(self, ignored: Collection[str] = ()) -> None:
        """
        Args:
            ignored: names of fields that backends get and that are not compared.
        """
        self.ignored = frozenset(name.encode() for name in ignored)
        self._requests: dict[str, Request] = {}
        self._begun: Counter[str] = Counter()
        self.seen: defaultdict[str, list[str]] = defaultdict(list)
        """What each attempt brought, by request."""
        self.arrived: dict[str, asyncio.Event] = {}
        """Set once a backend has the whole request."""
        self.left: dict[str, asyncio.Event] = {}
        """Set once its client has gone."""

    def add(self, requests: tuple[Request, ...]) -> None:
        """Expect these."""
        for request in requests:
            self._requests[request.id] = request
            self._begun[request.id] = 0
            self.seen.pop(request.id, None)
            self.arrived[request.id] = asyncio.Event()
            self.left[request.id] = asyncio.Event()

    def begin(self, request_id: str) -> tuple[Request, Reply]:
        """One more attempt."""
        request = self._requests[request_id]
        at = min(self._begun[request_id], len(request.replies) - 1)
        self._begun[request_id] += 1
        return request, request.replies[at]

    def whole(self, request_id: str, *saw: object) -> None:
        """An attempt has brought all of its request."""
        self.seen[request_id].append(" ".join(map(str, saw)))
        self.arrived[request_id].set()


def _control(path: str) -> tuple[int, object]:
    """What a Triton says of itself."""
    if path.startswith("/v2/health/"):
        return 200, None
    if path == "/v2/repository/index":
        return 200, [{"name": name, "version": "1", "state": "READY"} for name in MODELS]
    if match := re.fullmatch(r"/v2/models/(\w+)(?:/versions/1)?/config", path):
        config: dict[str, object] = {"name": match[1], "max_batch_size": 8, **_CONFIG}
        if match[1] == STATEFUL:
            config["sequence_batching"] = {}
        if match[1] == MODELS[1]:
            config["dynamic_batching"] = {}
        if match[1] == MODELS[3]:
            config["model_transaction_policy"] = {"decoupled": True}
        return 200, config
    if path == "/v2/models/stats":
        return 200, {"model_stats": []}
    if path.endswith("sharedmemory/status"):
        return 200, []
    return 404, {"error": "not found"}


async def _serve_http(
    registry: Registry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[:2]
        found = re.search(rb"(?i)\r\nx-request-id: ([0-9.]+)\r", head)
        if found is None:
            await _read_body(reader, head)
            status, content = _control(target.decode())
            body = b"" if content is None else json.dumps(content).encode()
            writer.write(_http_head(status, body) + body)
            continue
        request, reply = registry.begin(found[1].decode())
        answer = _http_answer(reply, is_head=method == b"HEAD")
        body = await _read_body(reader, head)
        registry.whole(request.id, _shown_head(head, registry.ignored), digest(body))
        if request.is_left:
            await registry.left[request.id].wait()
            try:
                async with asyncio.timeout(LEAVE_S):
                    await reader.read(1)
                registry.seen[request.id].append("closed")
                return
            except TimeoutError:
                registry.seen[request.id].append("left open")
            reply, answer = Reply(Act.ANSWER), _http_answer(Reply(Act.ANSWER), is_head=False)
        if reply.act is Act.LOST:
            return
        if reply.act is Act.CUT:
            writer.write(_http_head(200, bytes(100)) + bytes(50))
            return
        if reply.act is Act.GARBAGE:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            return
        await _write_in_pieces(writer, answer, reply.pieces)


async def _write_in_pieces(writer: asyncio.StreamWriter, content: bytes, pieces: int) -> None:
    step = max(1, -(-len(content) // pieces))
    for at in range(0, len(content), step):
        writer.write(content[at : at + step])
        await writer.drain()
        await asyncio.sleep(0)


def _shown_head(head: bytes, ignored: Collection[bytes]) -> str:
    """A head without its Host, which names the backend."""
    for name in (b"host", *ignored):
        head = re.sub(rb"(?i)\r\n" + re.escape(name) + rb": [^\r]*", b"", head)
    return repr(head)


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        body = b""
        while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return await reader.readexactly(int(length[1]) if length else 0)


def _http_head(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Some\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        status,
        len(body),
    )


def _http_answer(reply: Reply, *, is_head: bool) -> bytes:
    status, body = 200, b"a" * reply.size
    if reply.act is Act.ERROR:
        status, body = 500, b'{"error":"it failed"}'
    elif reply.act is Act.ELSEWHERE:
        status, body = 503, b'{"error":"Server is stopping, scheduler for model has stopped"}'
    if not reply.is_chunked or status != 200 or is_head:
        return _http_head(status, body) + (b"" if is_head else body)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Kept: yes\r\n\r\n"
    half = len(body) // 2
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:half], body[half:]) if each
    )
    return head + chunks + b"0\r\n\r\n"


class _GrpcConnection:
    """One connection of a backend's gRPC port."""

    def __init__(self, registry: Registry, peer: Peer) -> None:
        self._registry = registry
        self._peer = peer
        self._handled: set[int] = set()
        self._taken: Counter[int] = Counter()
        """Bytes of a stream's body that were taken for whole messages."""
        self._streams: dict[int, str] = {}
        """Request under way of a `ModelStreamInfer`."""
        self._leaving: dict[int, Request] = {}
        self.is_over = False

    async def serve(self) -> None:
        while not self.is_over:
            frame = await self._peer.next()
            if frame is None:
                break
            stream = frame.stream
            if stream in self._peer.resets:
                self._reset(stream)
            elif stream and stream in self._peer.heads and stream not in self._handled:
                self._on_stream(stream)
        for stream in (*self._leaving, *self._streams):
            self._note_end(stream, "closed")

    def _reset(self, stream: int) -> None:
        self._note_end(stream, f"reset {self._peer.resets[stream]}")
        self._handled.add(stream)

    def _note_end(self, stream: int, how: str) -> None:
        request = self._leaving.pop(stream, None)
        request_id = request.id if request is not None else self._streams.pop(stream, None)
        if request_id is not None:
            self._registry.seen[request_id].append(how)

    def _on_stream(self, stream: int) -> None:
        peer = self._peer
        fields = peer.heads[stream][0]
        if dict(fields)[b":path"].decode() == STREAM_INFER:
            self._on_messages(stream, fields)
            return
        if stream not in peer.ended:
            return
        self._handled.add(stream)
        body = bytes(peer.bodies.get(stream, b""))
        request_id = dict(fields).get(b"x-request-id")
        if request_id is None:
            is_ready = dict(fields)[b":path"].endswith((b"Ready", b"Live"))
            peer.send(self._answer(stream, b"\x08\x01") if is_ready else _trailers_only(stream, 12))
            return
        request, reply = self._registry.begin(request_id.decode())
        self._registry.whole(
            request.id, _shown_fields(fields, self._registry.ignored), digest(body)
        )
        if request.is_left or reply.act is Act.SILENT:
            self._leaving[stream] = request
        else:
            self._act(stream, reply)

    def _act(self, stream: int, reply: Reply) -> None:
        send = self._peer.send
        if reply.act is Act.LOST:
            self.is_over = True
        elif reply.act is Act.CUT:
            send(headers(stream, _RPC_HEAD) + data(stream, message(bytes(100))[:50]))
            self.is_over = True
        elif reply.act is Act.REFUSED:
            send(rst(stream, REFUSED_STREAM))
        elif reply.act is Act.RESET:
            send(rst(stream, INTERNAL_ERROR))
        elif reply.act is Act.NO_TRAILERS:
            send(headers(stream, _RPC_HEAD) + data(stream, message(bytes(100)), end=True))
        elif reply.act is Act.ERROR:
            send(_trailers_only(stream, 13, b"it failed"))
        elif reply.act is Act.ELSEWHERE:
            send(_trailers_only(stream, 14, b"Server is stopping, scheduler has stopped"))
        else:
            send(self._answer(stream, b"a" * reply.size, reply.pieces))

    @staticmethod
    def _answer(stream: int, payload: bytes, pieces: int = 1) -> bytes:
        content = message(payload)
        step = min(16_384, max(1, -(-len(content) // pieces)))
        parts = [content[at : at + step] for at in range(0, len(content), step)]
        return b"".join((
            headers(stream, _RPC_HEAD),
            *(data(stream, part) for part in parts),
            headers(stream, [(b"grpc-status", b"0"), (b"x-kept", b"yes")], end=True),
        ))  # fmt: skip

    # ModelStreamInfer

    def _on_messages(self, stream: int, fields: list[FieldPair]) -> None:
        peer = self._peer
        body = peer.bodies.get(stream, bytearray())
        while len(body) - self._taken[stream] >= 5:
            at = self._taken[stream]
            end = at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            if len(body) < end:
                break
            self._taken[stream] = end
            if not self._on_message(stream, fields, bytes(body[at + 5 : end])):
                return
        if stream in peer.ended:
            self._handled.add(stream)
            self._streams.pop(stream, None)
            end_fields = [(b"grpc-status", b"0")]
            is_answered = len(peer.heads[stream]) > 1 or self._taken[stream]
            head = b"" if is_answered else headers(stream, _RPC_HEAD)
            peer.send(head + headers(stream, end_fields, end=True))

    def _on_message(self, stream: int, fields: list[FieldPair], content: bytes) -> bool:
        """One request; whether the stream goes on."""
        sent = pb.ModelInferRequest.FromString(content)
        request, reply = self._registry.begin(sent.id)
        is_first = stream not in self._streams
        self._streams[stream] = request.id
        self._registry.whole(
            request.id, _shown_fields(fields, self._registry.ignored), digest(content)
        )
        if request.is_left:
            self._leaving[stream] = request
            del self._streams[stream]
            return False
        if reply.act is Act.LOST:
            self.is_over = True
            return False
        if reply.act is Act.RESET:
            self._streams.pop(stream)
            self._handled.add(stream)
            self._peer.send(rst(stream, INTERNAL_ERROR))
            return False
        answer = pb.ModelStreamInferResponse()
        answer.infer_response.id = sent.id
        if reply.act is Act.ERROR:
            answer.error_message = "it failed"
        elif reply.act is Act.ELSEWHERE:
            answer.error_message = "Server is stopping, scheduler for model has stopped"
        else:
            answer.infer_response.model_name = sent.model_name
            answer.infer_response.raw_output_contents.append(b"a" * reply.size)
        framed = message(answer.SerializeToString(deterministic=True))
        parts = [framed[at : at + 16_384] for at in range(0, len(framed), 16_384)]
        head = headers(stream, _RPC_HEAD) if is_first else b""
        self._peer.send(head, *(data(stream, part) for part in parts))
        return True


def _shown_fields(fields: list[FieldPair], ignored: Collection[bytes]) -> str:
    """A head without what is of a backend or of the time: `:authority` and `grpc-timeout`."""
    changing = {b":authority", b"grpc-timeout", *ignored}
    return repr(sorted(field for field in fields if field[0] not in changing))


def _trailers_only(stream: int, status: int, text: bytes = b"") -> bytes:
    fields = [*_RPC_HEAD, (b"grpc-status", b"%d" % status), (b"grpc-message", text)]
    return headers(stream, fields, end=True)


@asynccontextmanager
async def backends(registry: Registry, count: int) -> AsyncIterator[list[Mapping[str, str]]]:
    """Run some; the `backends` of a configuration."""
    tasks: set[asyncio.Task[None]] = set()

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _guarded(tasks, writer, _serve_http(registry, reader, writer))

    async def grpc(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            peer = Peer(reader, writer)
            peer.send(settings({4: 1 << 24}))
            await _GrpcConnection(registry, peer).serve()

        await _guarded(tasks, writer, serve())

    servers = []
    found = []
    for number in range(count):
        pair = [
            await asyncio.start_server(each, "127.0.0.1", 0, limit=1 << 24) for each in (http, grpc)
        ]
        servers += pair
        ports = [server.sockets[0].getsockname()[1] for server in pair]
        found.append({
            "name": f"b{number}",
            "http": f"127.0.0.1:{ports[0]}",
            "grpc": f"127.0.0.1:{ports[1]}",
        })  # fmt: skip
    try:
        yield found
    finally:
        for server in servers:
            server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _guarded(
    tasks: set[asyncio.Task[None]], writer: asyncio.StreamWriter, serving: object
) -> None:
    task = asyncio.current_task()
    assert task is not None
    tasks.add(task)
    try:
        await serving  # type: ignore[misc]
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        tasks.discard(task)
        writer.close()
