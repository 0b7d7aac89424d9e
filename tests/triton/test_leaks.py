"""After a lot of traffic the balancer holds what it held before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import SERVICE
from tests.triton.raw_http import message
from tests.triton.server import RealTriton
from tests.triton.tensors import numbers, pair, repeat

UPSTREAM_IDLE_S = 0.2
GROWTH_BYTES = 32 << 20
"""A leak of 8 KiB per request would be more; the allocator's own ups and downs are less."""


@pytest.fixture(scope="module")
def quick_to_close(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    """A balancer that soon closes idle connections, so that they do not look like leaks."""
    yield from RunningBalancer.run(
        tmp_path_factory.mktemp("balancer-quick"),
        tritons,
        timeouts={"upstream_idle": f"{UPSTREAM_IDLE_S}s"},
    )


async def settled(balancer: RunningBalancer) -> int:
    """Wait until idle connections are closed and return the fewest files seen open.

    Probes and the questions of this test come and go meanwhile.
    """
    await asyncio.to_thread(wait_until, lambda: balancer.in_flight() == 0, what="nothing in flight")
    await asyncio.sleep(UPSTREAM_IDLE_S * 2)
    seen = []
    for _ in range(50):
        seen.append(balancer.open_files())
        await asyncio.sleep(0.01)
    return min(seen)


async def keep_alive_requests(address: str, *, connections: int, each: int) -> int:
    """Infer again and again on a few connections and return how many answers were good."""
    body, header_length = httpclient.InferenceServerClient.generate_request_body(
        pair(httpclient, numbers())
    )
    length = f"Inference-Header-Content-Length: {header_length}"
    asked = message("POST", "/v2/models/simple/infer", body, length)
    host, _, port = address.rpartition(":")

    async def one_connection() -> int:
        good = 0
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(each):
            writer.write(asked)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
            good += head.startswith(b"http/1.1 200 ")
        writer.close()
        await writer.wait_closed()
        return good

    return sum(await asyncio.gather(*(one_connection() for _ in range(connections))))


async def cancelled_streams(address: str, *, each: int) -> int:
    """Open streams on four connections, five at once, and cancel them, half of them before the
    first answer; return how many."""
    request = service_pb2.ModelInferRequest(model_name="repeat_int32")
    for made in repeat(grpcclient, list(range(500)), 20):
        request.inputs.append(made._get_tensor())
        request.raw_input_contents.append(made._get_content())
    asked = request.SerializeToString()

    async def one_after_another(channel: grpc.aio.Channel) -> int:
        cancelled = 0
        for number in range(each):
            call = channel.stream_stream(f"{SERVICE}ModelStreamInfer")()
            await call.write(asked)
            if number % 2:
                assert await call.read() is not grpc.aio.EOF
            call.cancel()
            cancelled += await call.code() is grpc.StatusCode.CANCELLED
        return cancelled

    own_connection = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(address, options=own_connection) for _ in range(4)]
    counts = await asyncio.gather(*(one_after_another(channel) for channel in channels * 5))
    await asyncio.gather(*(channel.close() for channel in channels))
    return sum(counts)


async def test_keep_alive_requests_leave_nothing_behind(quick_to_close: RunningBalancer) -> None:
    address = quick_to_close.target.http
    assert await keep_alive_requests(address, connections=8, each=100) == 800
    files = await settled(quick_to_close)
    memory = quick_to_close.resident_bytes()
    assert await keep_alive_requests(address, connections=8, each=500) == 4000
    assert await settled(quick_to_close) <= files
    assert quick_to_close.resident_bytes() - memory < GROWTH_BYTES


async def test_cancelled_streams_leave_nothing_behind(quick_to_close: RunningBalancer) -> None:
    address = quick_to_close.target.grpc
    assert await cancelled_streams(address, each=4) == 80
    files = await settled(quick_to_close)
    memory = quick_to_close.resident_bytes()
    assert await cancelled_streams(address, each=50) == 1000
    assert await settled(quick_to_close) <= files
    assert quick_to_close.resident_bytes() - memory < GROWTH_BYTES


async def test_uploads_that_clients_abandon_leave_nothing_behind(
    quick_to_close: RunningBalancer,
) -> None:
    host, _, port = quick_to_close.target.http.rpartition(":")
    files = await settled(quick_to_close)
    head = message("POST", "/v2/models/identity_fp32/infer", None, "Content-Length: 4000000")
    for _ in range(20):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + np.zeros(1000, dtype=np.float32).tobytes())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await settled(quick_to_close) <= files
