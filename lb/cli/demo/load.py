"""The requests of the demo: additions over both protocols, with every answer checked."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final

import aiohttp
import grpc

from lb.kserve import inference_pb2 as pb
from lb.kserve.messages import MODEL_INFER

MODEL: Final = "simple"
ELEMENTS: Final = 16
DEADLINE_S: Final = 5.0
RECENT: Final = 2000
"""Quantiles are over so many answers."""
MOST_UNDER_WAY: Final = 400
"""Requests under way beyond which no more arrive."""

Outputs = dict[str, Sequence[int]]
Infer = Callable[[Sequence[int], Sequence[int]], Awaitable[Outputs]]


@dataclass(slots=True)
class RequestTally:
    """What became of the requests of one protocol."""

    protocol: str
    right: int = 0
    wrong: int = 0
    failed: int = 0
    problem: str = ""
    """The last wrong answer or error."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def total(self) -> int:
        """Requests that have ended."""
        return self.right + self.wrong + self.failed

    @property
    def is_clean(self) -> bool:
        """Whether every answer was right."""
        return self.right == self.total

    def quantile_ms(self, share: float) -> float | None:
        """Return a quantile of the latest latencies in milliseconds; None before the first."""
        return quantile_ms(self.recent_s, share)


def quantile_ms(times_s: Iterable[float], share: float) -> float | None:
    """Return a quantile in milliseconds; None where there are no times."""
    ordered = sorted(times_s)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else None


class Arrivals:
    """Requests that arrive by chance, each of them at every contestant at the same time."""

    def __init__(
        self, contestants: Sequence[Sequence[tuple[Infer, RequestTally]]], rng: Random
    ) -> None:
        """
        Args:
            contestants: for each way to send requests (its protocol) all who are to get them.
            rng: decides when requests arrive and what they hold.
        """
        self._contestants = contestants
        self._rng = rng

    async def send(self, rate: float, lasts_s: float = inf) -> None:
        """Send requests for a time (by default without end), and return when all are answered.

        Args:
            rate: how many arrive per second on average.
            lasts_s: for so many seconds.
        """
        rng = self._rng
        room = asyncio.Semaphore(MOST_UNDER_WAY)
        ends_at = time.monotonic() + lasts_s
        async with asyncio.TaskGroup() as under_way:
            for contestants in itertools.cycle(self._contestants):
                if time.monotonic() >= ends_at:
                    break
                first = [rng.randrange(1000) for _ in range(ELEMENTS)]
                second = [rng.randrange(1000) for _ in range(ELEMENTS)]
                for infer, tally in contestants:
                    await room.acquire()
                    sent = under_way.create_task(send_one(infer, tally, first, second))
                    sent.add_done_callback(lambda _: room.release())
                await asyncio.sleep(rng.expovariate(rate))


async def send_one(
    infer: Infer, tally: RequestTally, first: Sequence[int], second: Sequence[int]
) -> None:
    """Send one request, and tally its answer."""
    started = time.monotonic()
    try:
        outputs = await infer(first, second)
    except (aiohttp.ClientError, TimeoutError, grpc.aio.AioRpcError) as error:
        tally.failed += 1
        tally.problem = _one_line(error)
        return
    except (KeyError, TypeError, ValueError, struct.error) as error:
        tally.wrong += 1
        tally.problem = f"answer without the outputs: {error!r}"
        return
    tally.recent_s.append(time.monotonic() - started)
    if outputs == _expected(first, second):
        tally.right += 1
    else:
        tally.wrong += 1
        tally.problem = f"{first} and {second} gave {outputs}"


def _expected(first: Sequence[int], second: Sequence[int]) -> Outputs:
    pairs = list(zip(first, second, strict=True))
    return {"OUTPUT0": [a + b for a, b in pairs], "OUTPUT1": [a - b for a, b in pairs]}


def _one_line(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def http_infer(session: aiohttp.ClientSession, address: str) -> Infer:
    """Return what infers over HTTP, in JSON, at `address` (HOST:PORT)."""
    url = f"http://{address}/v2/models/{MODEL}/infer"
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)

    async def infer(first: Sequence[int], second: Sequence[int]) -> Outputs:
        inputs = [
            {"name": name, "shape": [1, ELEMENTS], "datatype": "INT32", "data": values}
            for name, values in (("INPUT0", first), ("INPUT1", second))
        ]
        async with session.post(url, json={"inputs": inputs}, timeout=timeout) as response:
            response.raise_for_status()
            return _outputs_of_json(await response.json())

    return infer


def _outputs_of_json(answer: dict[str, Any]) -> Outputs:
    return {output["name"]: output["data"] for output in answer["outputs"]}


def grpc_infer(channel: grpc.aio.Channel) -> Infer:
    """Return what infers over gRPC, in binary, through `channel`."""
    call = channel.unary_unary(
        MODEL_INFER.path,
        request_serializer=MODEL_INFER.encode,
        response_deserializer=MODEL_INFER.decode,
    )

    async def infer(first: Sequence[int], second: Sequence[int]) -> Outputs:
        request = pb.ModelInferRequest(model_name=MODEL)
        for name, values in (("INPUT0", first), ("INPUT1", second)):
            request.inputs.add(name=name, datatype="INT32", shape=[1, ELEMENTS])
            request.raw_input_contents.append(struct.pack(f"<{ELEMENTS}i", *values))
        return dict(_outputs_of_message(await call(request, timeout=DEADLINE_S)))

    return infer


def _outputs_of_message(answer: pb.ModelInferResponse) -> Iterator[tuple[str, Sequence[int]]]:
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        yield output.name, list(struct.unpack(f"<{ELEMENTS}i", raw))
