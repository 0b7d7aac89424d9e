"""What the relay role tells the control role."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc

from lb.domain.load import LoadSample
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.proxy.role import load_sample
from lb.telemetry.meter import Meter
from tests.fakes.backends import make_backend
from tests.fakes.balancer import running_balancer
from tests.fakes.metrics import make_snapshot
from tests.fakes.records import PlainRecord, grpc_record
from tests.wire.waiting import eventually

WAITING = {
    "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
    "backends": [{"http": "127.0.0.1:1", "grpc": "127.0.0.1:1"}],
    "scheduling": {"wait_for_backend": "1h"},
}
"""No backend answers, and inferences wait for one."""
INFERENCE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
LOAD = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
"""A request whose body does not come."""
_SERVICE = "/inference.GRPCInferenceService"


def test_inferences_count_and_those_that_more_backends_would_have_served() -> None:
    meter = Meter()
    for _ in range(3):
        meter.finished(grpc_record(started_at=1.0, ended_at=1.5))
    for reason, status in ((Reason.NO_BACKEND, 14), (Reason.RATE_LIMITED, 8)):
        record = grpc_record(reason=reason, grpc_status=status, started_at=1.0, ended_at=1.0)
        meter.finished(record)
    meter.finished(PlainRecord(operation=Operation("ServerReady", OperationKind.READ)))
    for kind in (OperationKind.READ, OperationKind.CONTROL, OperationKind.STREAM):
        meter.finished(PlainRecord(operation=Operation(kind.name, kind), reason=Reason.NO_BACKEND))
    ramping = make_backend("b", weight=2.0)
    ramping.set_share(0.5)
    snapshot = make_snapshot([make_backend("a"), ramping])
    assert load_sample(meter, snapshot, 7) == LoadSample(
        answered=4, seconds=1.5, refused=1, open=7, weight=2.0, backends=2
    )


async def test_open_inferences_count_and_neither_streams_nor_other_requests() -> None:
    async with AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(running_balancer(WAITING))
        relay = balancer.product.relay
        host, port = balancer.address("http").rsplit(":", 1)
        for request in (INFERENCE, LOAD):
            _, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
            writer.write(request)
        async with grpc.aio.insecure_channel(balancer.address("grpc")) as channel:
            stream = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")()
            inference = channel.unary_unary(f"{_SERVICE}/ModelInfer")(b"\x0a\x01m")
            await eventually(lambda: relay.dispatcher.open_exchanges == 4)
            assert relay.load_sample().open == 2
            inference.cancel()
            await eventually(lambda: relay.dispatcher.open_exchanges == 3)
            assert relay.load_sample().open == 1
            stream.cancel()
