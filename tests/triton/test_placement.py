"""Models that are loaded for the requests that need them, on Tritons with room for a few.

`make placement` plays the long version: twenty models on three Tritons for minutes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from time import monotonic, perf_counter, time
from typing import Any

import grpc
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from benchmarks.eviction import Recording, comparison
from lb.placing.planner import RETRY_AFTER_S
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.model_store import lru_hits, zipf
from tests.fakes.process import wait_until
from tests.fakes.stream_backend import StreamClient, step
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import RefusedError, ask
from tests.triton.placed import (
    BROKEN_MODEL,
    MODEL,
    WAIT_S,
    client_of,
    index,
    name_of,
    names_in,
    ready,
    shown,
    taken,
    write_models,
)
from tests.triton.records import Records
from tests.triton.server import RealTriton

EXPONENT = float(os.environ.get("PLACEMENT_EXPONENT", "1.0"))
"""Of the Zipf traffic."""
SECONDS = float(os.environ.get("PLACEMENT_SECONDS", "0"))
"""How long the long version asks; 0 is a short one."""
COUNT = 20 if SECONDS else 6
TRITONS = 3 if SECONDS else 2
ROOM = 4 if SECONDS else 2
BROKEN = "broken"
MIN_AGE_S = 0.5
SOON_S = 40.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models, and one that cannot be loaded."""
    root = tmp_path_factory.mktemp("repository")
    models = [(name_of(number), MODEL) for number in range(COUNT)]
    write_models(root, [*models, (BROKEN, BROKEN_MODEL)])
    return root


@pytest.fixture(scope="module")
def tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records, repository: Path
) -> Iterator[tuple[RealTriton, ...]]:
    workspace = tmp_path_factory.mktemp("placed")
    started: list[RealTriton] = []
    try:
        for number in range(TRITONS):
            name, explicit = f"placed-{number}", "--model-control-mode=explicit"
            started.append(
                RealTriton(name, workspace, records.directory, explicit, models=repository)
            )
        for triton in started:
            triton.wait_ready()
        yield tuple(started)
    finally:
        for triton in started:
            triton.close()


def placement(mode: str = "on_demand") -> dict[str, Any]:
    return {
        "mode": mode,
        "max_models": ROOM,
        "wait": f"{WAIT_S:g}s",
        "min_age": f"{MIN_AGE_S:g}s",
    }


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    workspace = tmp_path_factory.mktemp("placing")
    variants = [
        {"name": "stable", "model": name_of(1), "weight": 50},
        {"name": "canary", "model": name_of(2), "weight": 50},
    ]
    models = {"either": {"variants": variants}}
    yield from RunningBalancer.run(workspace, tritons, placement=placement(), models=models)


@pytest.fixture(autouse=True)
def _empty(balancer: RunningBalancer, tritons: Sequence[RealTriton], records: Records) -> None:
    """Begin with nothing loaded, and nothing said by clients."""
    loads = records.directory / "loads"
    loads.write_text("")
    wait_until(lambda: not shown(balancer)["steps"], timeout_s=SOON_S, what="nothing is under way")
    for triton in tritons:
        with grpcclient.InferenceServerClient(triton.target.grpc) as client:
            for name in ready(triton):
                client.unload_model(name)
        wait_until(lambda each=triton: not taken(each), timeout_s=SOON_S, what="all is unloaded")  # type: ignore[misc]
    wait_until(
        lambda: not shown(balancer)["models"], timeout_s=SOON_S, what="the balancer knows it"
    )


def loads(records: Records) -> Counter[str]:
    return Counter((records.directory / "loads").read_text().split())


def infer_over_http(balancer: RunningBalancer, model: str) -> Any:
    value = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
    path = f"/v2/models/{model}/infer"
    return ask(balancer.target.http, "POST", path, {"inputs": [value]})


async def test_many_requests_at_once_for_a_cold_model_make_one_load(
    balancer: RunningBalancer, tritons: Sequence[RealTriton], records: Records
) -> None:
    async with client_of(balancer) as infer:
        answers = asyncio.gather(*(infer(name_of(0)) for _ in range(200)))
        over_http = asyncio.to_thread(infer_over_http, balancer, name_of(0))
        await asyncio.gather(answers, over_http)
    assert loads(records) == {name_of(0): 1}
    assert sorted(len(ready(triton)) for triton in tritons)[-2:] == [0, 1]
    (placed,) = shown(balancer)["models"]
    assert (placed["model"], placed["state"]) == (name_of(0), "ready")
    metrics = balancer.metrics_text()
    assert f'triton_lb_queue_waits_total{{model="{name_of(0)}",why="loading"}}' in metrics


def steps_logged(balancer: RunningBalancer, done: str, began: float) -> list[tuple[float, float]]:
    """The loads or evictions that the balancer has logged: when each ended, in seconds after a
    time, and how long it took."""
    lines = re.findall(rf"(?m)^(\S+) .* model {done} .*seconds=(\S+)$", balancer.log)
    ended = [(datetime.fromisoformat(at).timestamp() - began, float(took)) for at, took in lines]
    return [each for each in ended if each[0] >= 0.0]


async def test_no_request_is_lost_while_models_replace_each_other(
    balancer: RunningBalancer, tritons: Sequence[RealTriton], records: Records
) -> None:
    """With `PLACEMENT_SECONDS`, five requests a second; otherwise four at a time."""
    count = int(SECONDS * 5) or 80
    requests = zipf(COUNT, EXPONENT, count, Random(3))
    found = Counter[str]()
    took_s: list[float] = []
    arrivals: list[tuple[float, str]] = []
    most = 0
    at_once = asyncio.Semaphore(count if SECONDS else 4)

    async def request(infer: Callable[[str], Any], name: str, after_s: float) -> None:
        nonlocal most
        came = asyncio.Event()
        asyncio.get_running_loop().call_later(after_s, came.set)
        await came.wait()
        async with at_once:
            lists = [await asyncio.to_thread(index, triton) for triton in tritons]
            most = max(most, *(len(names_in(each)) for each in lists))
            is_hit = any(name in names_in(each, "READY") for each in lists)
            found["hit" if is_hit else "cold"] += 1
            arrivals.append((time() - began, name))
            asked_at = perf_counter()
            await infer(name)
            if not is_hit:
                took_s.append(perf_counter() - asked_at)

    began = time()
    gap_s = 0.2 if SECONDS else 0.0
    async with client_of(balancer) as infer, asyncio.TaskGroup() as tasks:
        for number, each in enumerate(requests):
            tasks.create_task(request(infer, name_of(each), gap_s * number))
    assert most <= ROOM
    assert max(loads(records).values()) < len(requests) / 2
    assert "triton_lb_model_evictions_total" in balancer.metrics_text()
    if SECONDS:
        no_load = 1 - loads(records).total() / count
        took_s.sort()
        recording = Recording(
            arrivals,
            steps_logged(balancer, "loaded", began),
            steps_logged(balancer, "evicted", began),
            (no_load, found["hit"] / count),
            MIN_AGE_S,
        )
        file = records.directory / "recording.json"
        recording.write(file)
        p50_s, p99_s = took_s[len(took_s) // 2], took_s[len(took_s) * 99 // 100]
        print(  # noqa: T201
            f"\nexponent {EXPONENT:g}, {count} requests (python -m benchmarks.eviction "
            f"--recorded {file})\n{comparison(recording)}\n"
            f"model not ready on arrival: answered after p50 {p50_s:.2f} s, p99 {p99_s:.2f} s"
        )
        assert no_load >= lru_hits(requests, ROOM * TRITONS) / count - 0.01


async def test_a_model_that_cannot_be_loaded_is_told_in_tritons_words(
    balancer: RunningBalancer, tritons: Sequence[RealTriton]
) -> None:
    began = monotonic()
    async with client_of(balancer) as infer:
        with pytest.raises(InferenceServerException, match="no weights"):
            await infer(BROKEN)
        with pytest.raises(InferenceServerException, match="no weights") as failed:
            await infer(BROKEN)
    assert failed.value.status() == "StatusCode.UNAVAILABLE"
    with pytest.raises(RefusedError, match="no weights") as refused:
        infer_over_http(balancer, BROKEN)
    assert refused.value.status == 503
    failures = shown(balancer)["failures"]
    assert {each["backend"] for each in failures} == {triton.name for triton in tritons}
    # A load that failed makes a Triton say that it is not ready; it serves its other models.
    async with client_of(balancer) as infer:
        await infer(name_of(0))
    # Nothing was tried again for these before its time.
    most = 1 + int((monotonic() - began) / RETRY_AFTER_S)
    assert all(1 <= each["failures"] <= most for each in failures)


@pytest.mark.parametrize("ends", [RealTriton.kill9, RealTriton.sigstop], ids=["dies", "is silent"])
async def test_a_model_whose_only_triton_dies_is_loaded_by_another_one(
    balancer: RunningBalancer,
    tritons: Sequence[RealTriton],
    records: Records,
    ends: Callable[[RealTriton], None],
) -> None:
    async with client_of(balancer) as infer:
        await infer(name_of(0))
        (home,) = [triton for triton in tritons if name_of(0) in ready(triton)]
        ends(home)
        try:
            await asyncio.gather(
                infer(name_of(0)), asyncio.to_thread(infer_over_http, balancer, name_of(0))
            )
            assert loads(records) == {name_of(0): 2}
        finally:
            home.restart()
            await asyncio.to_thread(home.wait_ready)
    await asyncio.to_thread(
        wait_until,
        lambda: home.name in shown(balancer)["backends"],
        timeout_s=SOON_S,
        what="it is managed again",
    )


async def test_each_message_of_a_stream_has_its_model_loaded(
    balancer: RunningBalancer, records: Records
) -> None:
    """More models than there is room for, twice, over one stream that stays open: it keeps none."""
    numbers = [*range(COUNT), *range(COUNT)]
    async with grpc_channel(balancer.target.grpc) as channel:
        stream = StreamClient(channel)
        for at, number in enumerate(numbers):
            request = step(name_of(number), 0, f"{at}")
            request.inputs.add(name="IN", datatype="INT32", shape=[1])
            request.raw_input_contents.append(bytes(4))
            await stream.send(request)
        assert await stream.answers(len(numbers)) == [(f"{at}", "") for at in range(len(numbers))]
        async with client_of(balancer) as infer:
            for number in range(COUNT):
                await infer(name_of(number))
        assert await stream.end() is grpc.StatusCode.OK
    assert len(loads(records)) == COUNT
    assert "it is in use" not in balancer.log


async def test_questions_about_a_model_load_nothing(
    balancer: RunningBalancer, records: Records
) -> None:
    with pytest.raises(RefusedError):
        ask(balancer.target.http, "GET", f"/v2/models/{name_of(0)}")
    with pytest.raises(RefusedError):
        ask(balancer.target.http, "GET", f"/v2/models/{name_of(0)}/ready")
    with grpcclient.InferenceServerClient(balancer.target.grpc) as client:
        assert not client.is_model_ready(name_of(0))
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.get_model_metadata(name_of(0))
    assert not loads(records)


async def test_what_clients_load_stays_and_what_they_unload_is_not_loaded_for_requests(
    balancer: RunningBalancer, tritons: Sequence[RealTriton]
) -> None:
    everybody = f"/v2/repository/models/{name_of(0)}"
    await asyncio.to_thread(ask, balancer.target.http, "POST", f"{everybody}/load", {})
    async with client_of(balancer) as infer:
        for number in range(1, COUNT):
            await infer(name_of(number))
    assert all(name_of(0) in ready(triton) for triton in tritons)
    assert {each["kept"] for each in shown(balancer)["models"] if each["model"] == name_of(0)} == {
        "loaded by a client"
    }
    await asyncio.to_thread(ask, balancer.target.http, "POST", f"{everybody}/unload", {})
    wait_until(
        lambda: not any(name_of(0) in taken(triton) for triton in tritons),
        timeout_s=SOON_S,
        what="it is unloaded",
    )
    with pytest.raises(RefusedError, match="unknown model"):
        infer_over_http(balancer, name_of(0))
    await asyncio.to_thread(ask, balancer.target.http, "POST", f"{everybody}/load", {})
    assert infer_over_http(balancer, name_of(0))["model_name"] == name_of(0)
    await asyncio.to_thread(ask, balancer.target.http, "POST", f"{everybody}/unload", {})


async def test_variants_that_are_loaded_nowhere_are_loaded_for_their_share(
    balancer: RunningBalancer, tritons: Sequence[RealTriton], records: Records
) -> None:
    async with client_of(balancer) as infer:
        answers = await asyncio.gather(*(infer("either") for _ in range(30)))
    assert {each.get_response().model_name for each in answers} == {"either"}
    assert loads(records) == {name_of(1): 1, name_of(2): 1}


async def test_operators_pin_and_evict(
    balancer: RunningBalancer, tritons: Sequence[RealTriton]
) -> None:
    def change(name: str, action: str) -> Any:
        return ask(balancer.admin, "POST", f"/api/v1/placement/models/{name}/{action}")

    await asyncio.to_thread(change, name_of(0), "pin")
    await asyncio.to_thread(
        wait_until,
        lambda: any(name_of(0) in ready(triton) for triton in tritons),
        timeout_s=SOON_S,
        what="it is loaded",
    )
    wait_until(
        lambda: "ready" in {each["state"] for each in shown(balancer)["models"]},
        timeout_s=SOON_S,
        what="it is known",
    )
    with pytest.raises(RefusedError, match="it is pinned") as refused:
        await asyncio.to_thread(change, name_of(0), "evict")
    assert refused.value.status == 409
    await asyncio.to_thread(change, name_of(0), "unpin")

    def is_evicted() -> bool:
        try:
            change(name_of(0), "evict")
        except RefusedError as refusal:
            if "is loading or unloading a model; try again" not in str(refusal):
                raise
            return False
        return True

    await asyncio.to_thread(wait_until, is_evicted, timeout_s=SOON_S, what="no other change")
    assert not any(name_of(0) in taken(triton) for triton in tritons)
    assert 'triton_lb_model_evictions_total{why="operator"}' in balancer.metrics_text()
