"""Three balancers before four Tritons: sequences, balance, a restart, one balancer more."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.serving import metric
from tests.triton.records import Records
from tests.triton.replicas import Replica, Service
from tests.triton.sequences import Sequence, Steps
from tests.triton.server import RealTriton

AGE_S = 1.0
EVEN = 1.25
"""How much more a Triton, or fewer connections a balancer, may have than its share."""
MOST = 0.6
"""Part of all inferences that one of four Tritons may run: those that were measured as faster are
preferred, which on a busy machine is chance."""
SETTLED_S = 15.0
"""By then all connections were made anew, on a busy machine; it takes about two times their age."""
SEQUENCES = 240
CLIENTS = 40
LIMIT_S = 60.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_ids = itertools.count(7_000_000)


@pytest.fixture(scope="module")
def four(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...], records: Records
) -> Iterator[tuple[RealTriton, ...]]:
    """One Triton more than other tests have."""
    folder = tmp_path_factory.mktemp("fourth")
    fourth = RealTriton("triton-3", folder, records.directory)
    try:
        fourth.wait_ready()
        yield (*tritons, fourth)
    finally:
        fourth.close()


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, four: tuple[RealTriton, ...]
) -> Iterator[list[Replica]]:
    """Four balancers, of which the tests begin with three."""
    folder = tmp_path_factory.mktemp("replicas")
    started = [
        Replica(
            folder,
            f"lb-{number}",
            four,
            max_connection_age=AGE_S,
            sequences={"affinity": "rendezvous"},
            shutdown={"pre_stop_delay": "500ms"},
            slow_start={"window": "0s"},
        )
        for number in range(4)
    ]
    try:
        for replica in started:
            replica.wait_ready()
        yield started
    finally:
        for replica in started:
            replica.close()


async def restart(service: Service, replica: Replica) -> None:
    """As a cluster does it: no new connections for it, SIGTERM, and back when it is ready."""
    service.members.remove(replica)
    await asyncio.to_thread(replica.stop)
    replica.begin()
    await asyncio.to_thread(replica.wait_ready)
    service.members.append(replica)


async def test_sequences_are_right_and_even_and_a_restart_loses_nothing(
    replicas: list[Replica],
) -> None:
    sequences = [Sequence(next(_ids)) for _ in range(SEQUENCES)]
    async with (
        asyncio.timeout(LIMIT_S),
        Service(replicas[:3]) as service,
        Steps(service.target) as steps,
    ):
        await steps.all(sequences, start=True)
        spread = Counter(next(iter(each.servers), "") for each in sequences)
        restarting = asyncio.create_task(restart(service, replicas[0]))
        rounds = 0
        while not restarting.done() or rounds < 4:
            await steps.all(sequences)
            rounds += 1
        await restarting
        await steps.all(sequences, end=True)
    wrong = [each for each in sequences if each.wrong or len(each.servers) != 1]
    assert wrong == []
    assert len(spread) == 4
    assert max(spread.values()) <= EVEN * SEQUENCES / 4
    assert "requests were cut" not in replicas[0].log


def inference() -> bytes:
    """One without state."""
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(bytes(64))
    return request.SerializeToString()


def attempts(replicas: list[Replica], tritons: tuple[RealTriton, ...]) -> Counter[str]:
    """Over gRPC so far, by Triton."""
    found = Counter[str]()
    for replica, triton in itertools.product(replicas, tritons):
        series = f'triton_lb_backend_attempts_total{{backend="{triton.name}",protocol="grpc"}}'
        found[triton.name] += int(metric(replica.metrics, series))
    return found


async def test_one_more_gets_its_share_of_clients_that_stay(
    replicas: list[Replica], four: tuple[RealTriton, ...]
) -> None:
    message = inference()
    before = await asyncio.to_thread(attempts, replicas, four)
    settled, done = asyncio.Event(), asyncio.Event()
    calls = 0

    async def stay(target: str) -> None:
        nonlocal calls
        # A connection of its own: channels to one address share theirs otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            call = channel.unary_unary(_INFER)
            while not done.is_set():
                await call(message, timeout=LIMIT_S)
                calls += 1
                if calls > 5 * CLIENTS:
                    settled.set()
                await asyncio.sleep(0.05)

    async with (
        asyncio.timeout(LIMIT_S),
        Service(replicas[:3]) as service,
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(CLIENTS):
            clients.create_task(stay(service.target.grpc))
        await settled.wait()
        newcomer = replicas[3]
        service.members.append(newcomer)
        began = time.monotonic()
        series = 'triton_lb_connections{protocol="grpc"}'
        share = 0.0
        while share < CLIENTS / 4 / EVEN and time.monotonic() - began < LIMIT_S / 2:
            await asyncio.sleep(0.1)
            share = await asyncio.to_thread(metric, newcomer.metrics, series)
        took_s = time.monotonic() - began
        done.set()
    spread = await asyncio.to_thread(attempts, replicas, four)
    spread.subtract(before)
    assert spread.total() >= calls
    assert min(spread[triton.name] for triton in four) > 0
    assert max(spread.values()) <= MOST * spread.total()
    assert share >= CLIENTS / 4 / EVEN
    assert took_s <= SETTLED_S
