"""Clients that play plans, and what they got."""

from __future__ import annotations

import asyncio
import itertools
import re

from lb.kserve import inference_pb2 as pb
from tests.against.backends import Registry, digest
from tests.against.plans import Plan, Protocol, Request
from tests.wire.frames import FieldPair, data, headers, message, rst
from tests.wire.http2 import ConnectionOver, Peer, greet

LIMIT_S = 20.0
"""For what is answered in milliseconds; a request that hangs shows as that."""
_FRAME = 16_384


async def play(plan: Plan, registry: Registry, http: int, grpc: int) -> list[str]:
    """Play a plan on one connection; what the client got, in order."""
    registry.add(plan.requests)
    got: list[str] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            if plan.protocol is Protocol.HTTP:
                await _play_http(plan, registry, http, got)
            else:
                await _play_http2(plan, registry, grpc, got)
    except TimeoutError:
        got.append("hangs")
    return got


def _split(plan: Plan, content: bytes) -> list[bytes]:
    """Content cut where the plan says."""
    cuts = [0, *(int(part * len(content)) for part in plan.splits), len(content)]
    parts = [content[start:end] for start, end in itertools.pairwise(cuts)]
    return [part for part in parts if part]


async def _send(plan: Plan, writer: asyncio.StreamWriter, content: bytes) -> None:
    for part in _split(plan, content):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.001 if plan.splits else 0)


async def _play_http(plan: Plan, registry: Registry, port: int, got: list[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        for request in plan.requests:
            await _send(plan, writer, _http_bytes(request))
            if request.is_left:
                await registry.arrived[request.id].wait()
                writer.transport.abort()
                registry.left[request.id].set()
                return
            got.append(await _http_answer(reader, request))
            if got[-1].startswith("closed"):
                return
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        got.append(f"closed: {type(error).__name__}")
    finally:
        writer.close()


def _http_bytes(request: Request) -> bytes:
    fields = [*request.fields, ("host", "lb.test"), ("x-request-id", request.id)]
    body = request.body
    if request.is_chunked and body:
        fields.append(("transfer-encoding", "chunked"))
        half = len(body) // 2 or 1
        chunks = (body[:half], body[half:])
        body = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks if each)
        body += b"0\r\n\r\n"
    elif request.method == "POST":
        fields.append(("content-length", str(len(body))))
    lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields)]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _http_answer(reader: asyncio.StreamReader, request: Request) -> str:
    head = b""
    while not head or head.startswith(b"HTTP/1.1 1"):
        head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    cut = ""
    try:
        if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        elif request.method != "HEAD":
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
    except asyncio.IncompleteReadError as error:
        body += error.partial
        cut = "closed within "
    shown = re.sub(rb"(?i)\r\ndate: [^\r]*", b"", head)
    return f"{cut}{shown!r} {digest(body)}"


async def _play_http2(plan: Plan, registry: Registry, port: int, got: list[str]) -> None:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
    try:
        await greet(peer, {4: 1 << 24})
        if plan.protocol is Protocol.STREAM:
            await _play_stream(plan, registry, peer, got)
            return
        for at, request in enumerate(plan.requests):
            stream = 2 * at + 1
            await _send(plan, peer.writer, _call_bytes(request, stream))
            if request.is_left:
                await _leave(registry, peer, stream, request)
                return
            await peer.until_over(stream)
            got.append(_rpc_answer(peer, stream))
    except (ConnectionOver, ConnectionError) as error:
        got.append(f"closed: {type(error).__name__}")
    finally:
        peer.abort()


async def _leave(registry: Registry, peer: Peer, stream: int, request: Request) -> None:
    await registry.arrived[request.id].wait()
    peer.send(rst(stream))
    await peer.writer.drain()
    registry.left[request.id].set()
    assert await peer.is_alive()


def _fields(request: Request) -> list[FieldPair]:
    more = [(name.encode(), value.encode()) for name, value in request.fields]
    if request.timeout_ms:
        more.append((b"grpc-timeout", b"%dm" % request.timeout_ms))
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", request.path.encode()),
        (b":authority", b"lb.test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"x-request-id", request.id.encode()),
        *more,
    ]


def _framed(stream: int, content: bytes, *, end: bool) -> bytes:
    parts = [content[at : at + _FRAME] for at in range(0, len(content), _FRAME)]
    return b"".join(
        data(stream, part, end=end and at == len(parts) - 1) for at, part in enumerate(parts)
    )


def _call_bytes(request: Request, stream: int) -> bytes:
    return headers(stream, _fields(request)) + _framed(stream, message(request.body), end=True)


def _rpc_answer(peer: Peer, stream: int) -> str:
    heads = peer.heads.get(stream, [])
    end = f"reset {peer.resets[stream]}" if stream in peer.resets else "ended"
    return f"{heads} {digest(bytes(peer.bodies.get(stream, b'')))} {end}"


async def _play_stream(plan: Plan, registry: Registry, peer: Peer, got: list[str]) -> None:
    """All messages on one stream; answers one by one, then how the stream ended."""
    first = plan.requests[0]
    peer.send(headers(1, _fields(first)))
    taken = 0

    def is_over() -> bool:
        return 1 in peer.ended or 1 in peer.resets

    def next_answer() -> str | None:
        nonlocal taken
        body = peer.bodies.get(1, bytearray())
        if len(body) - taken < 5:
            return None
        end = taken + 5 + int.from_bytes(body[taken + 1 : taken + 5], "big")
        if len(body) < end:
            return None
        answer = pb.ModelStreamInferResponse.FromString(bytes(body[taken + 5 : end]))
        taken = end
        size = sum(map(len, answer.infer_response.raw_output_contents))
        return f"{answer.infer_response.id} {answer.error_message!r} {size}"

    async def collect(count: int) -> None:
        for _ in range(count):
            while (answer := next_answer()) is None and not is_over():
                await peer.until(lambda frame: frame.stream == 1)
            if answer is None:
                return
            got.append(answer)

    for request in plan.requests:
        if is_over():
            break
        await _send(plan, peer.writer, _framed(1, message(request.body), end=False))
        if request.is_left:
            await _leave(registry, peer, 1, request)
            return
        if not plan.is_pipelined:
            await collect(1)
    if not is_over():
        peer.send(data(1, end=True))
    await collect(len(plan.requests))
    while not is_over():
        await peer.until(lambda frame: frame.stream == 1)
    got.append(f"{peer.heads.get(1, [])[1:]} {peer.resets.get(1)}")
