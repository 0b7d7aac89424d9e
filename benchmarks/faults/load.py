"""The load: mixed requests at a fixed rate, whatever becomes of them, each in the ledger.

HTTP and gRPC inferences of three sizes, sequences over both protocols, and streams. Clients do
not repeat anything and give up after a deadline: what they see is what the balancer made of it.
Only gRPC itself begins a call again that never left it, or that a server says it has not begun, as
it does for every client without a retry policy. Without that some one call in 2,000 that meets the
end of a connection fails before it is sent, also before gRPC's own server.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
import grpc
import grpc.aio

from benchmarks.faults.ledger import Asked, ClientLedger, Kind
from lb.kserve import inference_pb2 as pb
from tests.triton.target import Target

DEADLINE_S = 5.0
"""Of every client."""
IMAGE_BYTES, LARGE_BYTES, SMALL_BYTES = 602_112, 4 << 20, 256
_SERVICE = "/inference.GRPCInferenceService/"
_CHANNELS = 4
_STEPS, _STEP_PAUSE_S = 8, 0.15
_RESPONSES, _RESPONSE_MS = 5, 20
_LINE = struct.Struct("<I").pack
_SETTLE_S = DEADLINE_S + 3.0
"""After the load: in this time every client has given up."""
_NUMBERS = itertools.count(1)
"""Of all requests of all loads of this process: ids never come again."""


@dataclass(frozen=True)
class Mix:
    """What is asked. `rate` is requests a second, steps among them; the shares are of it."""

    rate: float = 108.0
    milliseconds: int = 50
    """How long a Triton takes for one."""
    steps: float = 0.1
    streams: float = 0.06
    images: float = 0.04
    large: float = 0.02
    bad: float = 0.0
    """Requests a second that every Triton refuses, beside all others."""
    connect_s: float = 1.0
    """How long a connection of gRPC may take to be made: the next may find another worker."""


class Load:
    """Asks until it is told to stop."""

    def __init__(self, target: Target, mix: Mix, *, seed: int = 1) -> None:
        self.ledger = ClientLedger()
        self.bad_rate = mix.bad
        self._target = target
        self._mix = mix
        self._rng = Random(seed)
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: list[grpc.aio.Channel] = []
        self._http: aiohttp.ClientSession
        self._bodies = {size: _Payload(size) for size in (SMALL_BYTES, IMAGE_BYTES, LARGE_BYTES)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Send while the block runs; afterwards every request has its outcome."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # In spite of its name, how long a connection may take to be made.
            ("grpc.min_reconnect_backoff_ms", int(self._mix.connect_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        self._channels = [
            grpc.aio.insecure_channel(self._target.grpc, options=options) for _ in range(_CHANNELS)
        ]
        limits = aiohttp.ClientTimeout(total=DEADLINE_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._http = aiohttp.ClientSession(connector=connector, timeout=limits)
        pace = [
            asyncio.ensure_future(self._pace(lambda: self._mix.rate, self._next)),
            asyncio.ensure_future(self._pace(lambda: self.bad_rate, self._next_bad)),
        ]
        try:
            yield self
        finally:
            self._is_over = True
            for each in pace:
                each.cancel()
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=_SETTLE_S)
                for task in late:  # it has no outcome, which is found in the ledger
                    task.cancel()
            await self._http.close()
            for channel in self._channels:
                await channel.close()

    def send_death(self) -> None:
        """Ask once for what kills the server that runs it."""
        self._spawn(self._unary(Kind.DEATH, SMALL_BYTES, time.monotonic(), "death"))

    async def _pace(self, rate: Callable[[], float], send: Callable[[float], None]) -> None:
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if not rate():
                due = now + 0.1
            elif due < now - 1.0:  # this process did not get its turn: no burst afterwards
                due = now
            while rate() and due <= now:
                send(due)
                due += 1.0 / rate()
            await asyncio.sleep(max(0.001, due - time.monotonic()))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    def _next(self, due: float) -> None:
        mix, chance = self._mix, self._rng.random()
        if chance < mix.steps:
            if self._rng.random() < 1.0 / _STEPS:  # the sequence then goes on by itself
                self._spawn(self._sequence())
            return
        if chance < mix.steps + mix.streams:
            self._spawn(self._stream(due))
            return
        chance, size = self._rng.random(), SMALL_BYTES
        if chance < mix.images:
            size = IMAGE_BYTES
        elif chance < mix.images + mix.large:
            size = LARGE_BYTES
        kind = Kind.GRPC if self._rng.random() < 0.6 else Kind.HTTP
        self._spawn(self._unary(kind, size, due))

    def _next_bad(self, due: float) -> None:
        self._spawn(self._bad(due))

    def _open(self, kind: Kind, size: int, due: float, prefix: str = "q") -> Asked:
        return self.ledger.open(f"{prefix}{next(_NUMBERS):08}", kind, size, due)

    async def _settle(self, asked: Asked, work: Awaitable[None]) -> None:
        """Wait for the answer and note the outcome."""
        try:
            await work
        except grpc.aio.AioRpcError as error:
            # Only a head that is not the end carries fields of its own; and only after a head is
            # a stream reset instead of ended by a status.
            asked.response_begun |= bool(error.initial_metadata())
            asked.response_begun |= "RST_STREAM" in (error.details() or "")
            asked.error = f"{error.code().name}: {error.details()}"
        except TimeoutError:
            asked.error = "deadline"
        except (aiohttp.ClientError, OSError, RefusedError) as error:
            asked.error = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, IndexError) as error:
            asked.wrong = f"unreadable answer: {error!r}"
        asked.ended = time.monotonic()
        asked.outcomes += 1

    # Inferences

    async def _unary(self, kind: Kind, size: int, due: float, prefix: str = "q") -> None:
        asked = self._open(kind, size, due, prefix)
        body, checksum = self._bodies[size].of(asked.id)
        parts = [
            ("ID", "BYTES", 1, _LINE(len(asked.id)) + asked.id.encode()),
            ("MILLISECONDS", "INT32", 1, _LINE(self._mix.milliseconds)),
            ("PAYLOAD", "UINT8", size, body),
        ]
        ask = self._ask_http if kind is Kind.HTTP else self._ask_grpc
        await self._settle(asked, ask(asked, "ledger", parts, {}, f"{asked.id}:{checksum}"))

    async def _ask_grpc(
        self, asked: Asked, model: str, parts: list[Part], said: dict[str, Any], expected: str
    ) -> None:
        infer = self._channel().unary_unary(
            f"{_SERVICE}ModelInfer", response_deserializer=pb.ModelInferResponse.FromString
        )
        request = make_message(model, asked.id, parts, said)
        answer = await infer(request, timeout=DEADLINE_S)
        check(asked, answer, expected)

    async def _ask_http(
        self, asked: Asked, model: str, parts: list[Part], said: dict[str, Any], expected: str
    ) -> None:
        head, body = make_body(asked.id, parts, said)
        url = f"http://{self._target.http}/v2/models/{model}/infer"
        fields = {"Inference-Header-Content-Length": str(head)}
        # aiohttp wants large ones as files.
        data = body if len(body) <= IMAGE_BYTES + 1024 else io.BytesIO(body)
        async with self._http.post(url, data=data, headers=fields) as response:
            asked.response_begun = response.status == 200
            content = await response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {content[:200]!r}")
        answer = json.loads(content)
        said_by = {each["name"]: each["data"][0] for each in answer["outputs"]}
        asked.server = said_by["SERVER"]
        if said_by["ECHO"] != expected or answer.get("id") != asked.id:
            asked.wrong = f"{said_by['ECHO']} with id {answer.get('id')} instead of {expected}"

    def _channel(self) -> grpc.aio.Channel:
        return self._channels[self._rng.randrange(_CHANNELS)]

    # Sequences and streams

    async def _sequence(self) -> None:
        """The steps of one; given up when one fails."""
        number = next(_NUMBERS)
        total = 0
        for step in range(_STEPS):
            if self._is_over:
                return
            asked = self._open(Kind.STEP, SMALL_BYTES, time.monotonic(), "s")
            value = self._rng.randrange(1000)
            total += value
            said = {
                "sequence_id": number,
                "sequence_start": step == 0,
                "sequence_end": step == _STEPS - 1,
            }
            parts = [
                ("ID", "BYTES", (1, 1), _LINE(len(asked.id)) + asked.id.encode()),
                ("VALUE", "INT32", (1, 1), _LINE(value)),
            ]
            ask = self._ask_http if self._rng.random() < 0.3 else self._ask_grpc
            await self._settle(
                asked, ask(asked, "ledger_sequence", parts, said, f"{asked.id}:{total}")
            )
            if asked.error or asked.wrong:
                return
            await asyncio.sleep(_STEP_PAUSE_S)

    async def _stream(self, due: float) -> None:
        asked = self._open(Kind.STREAM, SMALL_BYTES, due, "t")
        await self._settle(asked, self._read_stream(asked))

    async def _read_stream(self, asked: Asked) -> None:
        call = self._channel().stream_stream(
            f"{_SERVICE}ModelStreamInfer",
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        parts = [
            ("ID", "BYTES", 1, _LINE(len(asked.id)) + asked.id.encode()),
            ("MILLISECONDS", "INT32", 1, _LINE(_RESPONSE_MS)),
            ("COUNT", "INT32", 1, _LINE(_RESPONSES)),
        ]
        request = make_message("ledger_stream", asked.id, parts, {})
        number = 0
        async for answer in call(iter([request]), timeout=DEADLINE_S):
            if answer.error_message:
                raise RefusedError(f"in the stream: {answer.error_message}")
            if not answer.infer_response.raw_output_contents:
                continue  # the final response may be empty
            asked.response_begun = True
            check(asked, answer.infer_response, f"{asked.id}:{number}")
            number += 1
        if number != _RESPONSES and not asked.wrong:
            asked.wrong = f"{number} responses instead of {_RESPONSES}, and a good end"

    # Mistakes

    async def _bad(self, due: float) -> None:
        """What no Triton takes: no JSON, an unknown model, a wrong shape."""
        asked = self._open(Kind.BAD, SMALL_BYTES, due, "b")
        how = self._rng.randrange(4)
        if how == 0:
            await self._settle(asked, self._bad_http("ledger", b'{"inputs":'))
        elif how == 1:
            await self._settle(asked, self._bad_http("nobody_has_it", b'{"inputs":[]}'))
        else:
            model = "ledger" if how == 2 else "nobody_has_it"
            parts = [("ID", "BYTES", 3, b"\x00")]
            await self._settle(asked, self._ask_grpc(asked, model, parts, {}, ""))

    async def _bad_http(self, model: str, body: bytes) -> None:
        url = f"http://{self._target.http}/v2/models/{model}/infer"
        async with self._http.post(url, data=body) as response:
            content = await response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {content[:200]!r}")


class RefusedError(Exception):
    """A server answered with an error."""


class _Payload:
    """Bodies of one size that differ in their last bytes, with their CRC-32 at little cost."""

    def __init__(self, size: int) -> None:
        self._same = bytes(range(256)) * (size // 256)
        self._same = self._same[: size - 16]
        self._checksum = zlib.crc32(self._same)

    def of(self, request_id: str) -> tuple[bytes, int]:
        """The body for a request, and its checksum."""
        tail = request_id.encode().ljust(16)
        return self._same + tail, zlib.crc32(tail, self._checksum)


Part = tuple[str, str, Any, bytes]
"""A tensor: name, datatype, length or shape, content."""


def shape_of(shape: Any) -> list[int]:
    """A length alone is a vector."""
    return list(shape) if isinstance(shape, tuple) else [shape]


def make_message(model: str, request_id: str, parts: list[Part], said: dict[str, Any]) -> bytes:
    """A ModelInferRequest."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    for name, datatype, shape, content in parts:
        request.inputs.add(name=name, datatype=datatype, shape=shape_of(shape))
        request.raw_input_contents.append(content)
    for name, value in said.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        else:
            request.parameters[name].int64_param = value
    return request.SerializeToString()


def make_body(request_id: str, parts: list[Part], said: dict[str, Any]) -> tuple[int, bytes]:
    """The same for HTTP with binary tensors: the length of the JSON head, and everything."""
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape_of(shape),
            "parameters": {"binary_data_size": len(content)},
        }
        for name, datatype, shape, content in parts
    ]
    head = json.dumps({"id": request_id, "parameters": said, "inputs": inputs}).encode()
    return len(head), b"".join([head, *(part[3] for part in parts)])


def check(asked: Asked, answer: Any, expected: str) -> None:
    """Compare an answer with what the request must get."""
    echo, server = (content[4:].decode() for content in answer.raw_output_contents)
    asked.server = server
    if echo != expected or answer.id != asked.id:
        asked.wrong = f"{echo} with id {answer.id} instead of {expected}"
