"""Models come, go and differ between Tritons; clients of the balancer do not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import pytest
import tritonclient.grpc as grpcclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import SLOW, SLOW_START_S, ExplicitTriton, RefusedError, ask
from tests.triton.load import Load
from tests.triton.records import Records

MODELS = ("sleeper", "simple", "simple_sequence", "simple_ensemble", SLOW)
"""`simple_ensemble` has `simple` as its step."""
CLIENTS = 8
BACK_S = 40.0
"""A Triton starts in 2 to 5 s on two idle cores."""


@pytest.fixture(scope="module")
def tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[ExplicitTriton, ...]]:
    """Three Tritons under explicit model control."""
    workspace = tmp_path_factory.mktemp("explicit")
    started: list[ExplicitTriton] = []
    try:
        for number in range(3):
            name = f"explicit-{number}"
            started.append(ExplicitTriton(name, workspace, records.directory, MODELS))
        for triton in started:
            triton.wait_ready()
        yield tuple(started)
    finally:
        for triton in started:
            triton.close()


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[ExplicitTriton, ...]
) -> Iterator[RunningBalancer]:
    """The balancer before them."""
    yield from RunningBalancer.run(tmp_path_factory.mktemp("balancer-of-models"), tritons)


@pytest.fixture
def replica(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[ExplicitTriton, ...]
) -> Iterator[RunningBalancer]:
    """Another balancer before the same Tritons."""
    yield from RunningBalancer.run(tmp_path_factory.mktemp("replica-of-models"), tritons)


def table(balancer: RunningBalancer, triton: ExplicitTriton) -> dict[str, Any]:
    """What the balancer knows of a Triton's models."""
    found: dict[str, Any] = ask(balancer.admin, "GET", f"/api/v1/backends/{triton.name}/models")
    return found


def ready(balancer: RunningBalancer, triton: ExplicitTriton) -> set[str]:
    models = table(balancer, triton)["models"]
    return {model["name"] for model in models if model["state"] == "ready"}


async def until(is_so: Callable[[], bool], what: str, timeout_s: float = BACK_S) -> None:
    await asyncio.to_thread(wait_until, is_so, timeout_s=timeout_s, what=what)


def control(balancer: RunningBalancer, protocol: str, verb: str, model: str) -> None:
    """Load or unload on all Tritons, by one call."""
    if protocol == "http":
        ask(balancer.target.http, "POST", f"/v2/repository/models/{model}/{verb}", {})
        return
    with grpcclient.InferenceServerClient(balancer.target.grpc) as client:
        getattr(client, f"{verb}_model")(model)


def status_of_slow(balancer: RunningBalancer) -> int:
    """What an inference comes to."""
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}
    try:
        path = f"/v2/models/{SLOW}/infer"
        ask(balancer.target.http, "POST", path, {"inputs": [tensor]})
    except RefusedError as error:
        return error.status
    return 200


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_tritons_that_load_a_model_serve_the_others(
    balancer: RunningBalancer, tritons: tuple[ExplicitTriton, ...], protocol: str
) -> None:
    states: set[str] = set()
    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for_more(10)
        await asyncio.to_thread(control, balancer, protocol, "unload", SLOW)
        assert await asyncio.to_thread(status_of_slow, balancer) >= 400
        loading = asyncio.ensure_future(
            asyncio.to_thread(control, balancer, protocol, "load", SLOW)
        )
        while not loading.done():
            views = await asyncio.to_thread(balancer.backends)
            states.update(state for view in views.values() for state in view.port_states)
            await load.wait_for_more(5)
        await loading
        # Whoever loads a model asks for it next, of whichever Triton.
        for _ in range(2 * len(tritons)):
            assert await asyncio.to_thread(status_of_slow, balancer) == 200
        await load.wait_for_more(20)
    assert load.failures == []
    assert max(sample.ended - sample.began for sample in load.samples) < SLOW_START_S
    # A Triton that loads a model says that it is not ready as a whole.
    assert "partial" in states
    await until(balancer.all_in_rotation, "all are ready again")
    await until(
        lambda: all(ready(balancer, each) == set(MODELS) for each in tritons),
        "all tables are alike",
    )


async def test_a_model_that_one_triton_unloads_is_served_by_the_others(
    balancer: RunningBalancer, tritons: tuple[ExplicitTriton, ...]
) -> None:
    victim = tritons[0]
    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for_more(10)
        path = "/v2/repository/models/sleeper"
        await asyncio.to_thread(victim.ask, "POST", f"{path}/unload", {})
        await until(lambda: "sleeper" not in ready(balancer, victim), "the table knows")
        settled = asyncio.get_running_loop().time()
        await load.wait_for_more(30)
        assert table(balancer, victim)["drift"]["models"] == ["sleeper"]
        await asyncio.to_thread(victim.ask, "POST", f"{path}/load", {})
        await until(lambda: "sleeper" in ready(balancer, victim), "the table knows")
        await load.wait_for(5, lambda s: s.server == victim.name and s.began > settled)
    assert load.failures == []


async def test_a_model_that_is_drained_on_one_triton_can_be_unloaded_there_under_load(
    balancer: RunningBalancer, tritons: tuple[ExplicitTriton, ...]
) -> None:
    victim = tritons[1]
    drained = f"/api/v1/backends/{victim.name}/models/sleeper"

    def is_empty() -> bool:
        return bool(ask(balancer.admin, "GET", drained)["empty"])

    async with Load(balancer.target, clients=CLIENTS) as load:
        await load.wait_for(1, lambda sample: sample.server == victim.name)
        await asyncio.to_thread(ask, balancer.admin, "POST", f"{drained}/drain")
        await until(is_empty, "nothing of it runs there")
        drained_at = asyncio.get_running_loop().time()
        path = "/v2/repository/models/sleeper"
        await asyncio.to_thread(victim.ask, "POST", f"{path}/unload", {})
        await load.wait_for_more(30)
        await asyncio.to_thread(victim.ask, "POST", f"{path}/load", {})
        await until(lambda: "sleeper" in ready(balancer, victim), "the table knows")
        enabled_at = asyncio.get_running_loop().time()
        await asyncio.to_thread(ask, balancer.admin, "POST", f"{drained}/enable")
        await load.wait_for(5, lambda s: s.server == victim.name and s.began > enabled_at)
    assert load.failures == []
    between = [s for s in load.samples if drained_at < s.began < s.ended < enabled_at]
    assert len(between) >= 30
    assert victim.name not in {sample.server for sample in between}


async def test_a_triton_that_restarts_empty_gets_what_the_others_have(
    balancer: RunningBalancer, replica: RunningBalancer, tritons: tuple[ExplicitTriton, ...]
) -> None:
    """Two balancers see to it, and do not fight."""
    victim = tritons[-1]
    memory = shared_memory.SharedMemory(create=True, size=8192)
    region = {"key": f"/{memory.name}", "offset": 4096, "byte_size": 1024}
    try:
        everybody = balancer.target.http
        ask(everybody, "POST", "/v2/systemsharedmemory/region/restored/register", region)
        ask(everybody, "POST", "/v2/logging", {"log_verbose_level": 1})
        ask(everybody, "POST", "/v2/trace/setting", {"trace_rate": "7"})
        async with Load(balancer.target, clients=CLIENTS) as load:
            await load.wait_for_more(10)
            victim.kill9()
            await until(lambda: not victim.is_running, "it is dead")
            await until(lambda: balancer.backends()[victim.name].is_out, "it is out of rotation")
            await until(lambda: not ready(balancer, victim), "its models are forgotten")
            out_at = asyncio.get_running_loop().time()
            victim.restart_with()
            await until(lambda: ready(balancer, victim) == set(MODELS), "it has its models again")
            await load.wait_for(5, lambda s: s.server == victim.name and s.began > out_at)
        assert victim.ready_models() == set(MODELS)
        (status,) = victim.ask("GET", "/v2/systemsharedmemory/region/restored/status")
        assert status == {"name": "restored", **region}
        assert victim.ask("GET", "/v2/logging")["log_verbose_level"] == 1
        assert victim.ask("GET", "/v2/trace/setting")["trace_rate"] == "7"
        assert len(load.failures) <= CLIENTS
        assert [each for each in load.failures if each.began > out_at] == []
        restored = balancer.metrics_text() + replica.metrics_text()
        assert 'triton_lb_restored_total{kind="model",result="restored"}' in restored
        assert 'result="failed"' not in restored
        await until(lambda: ready(replica, victim) == set(MODELS), "the other one knows")
    finally:
        for triton in tritons:
            triton.ask("POST", "/v2/systemsharedmemory/unregister")
            triton.ask("POST", "/v2/logging", {"log_verbose_level": 0})
            triton.ask("POST", "/v2/trace/setting", {"trace_rate": "1000"})
        memory.close()
        memory.unlink()


async def test_a_triton_that_restarts_empty_runs_models_as_the_others_do(
    balancer: RunningBalancer, replica: RunningBalancer, tritons: tuple[ExplicitTriton, ...]
) -> None:
    """Configurations that came with a load are not in the repository."""
    victim = tritons[0]
    path, model = "/v2/models/simple_sequence/config", "simple_sequence"
    usual = victim.ask("GET", path)
    batching = {**usual["sequence_batching"], "max_sequence_idle_microseconds": 7_000_000}
    other = {**usual, "sequence_batching": batching}

    def load(config: dict[str, Any]) -> None:
        with grpcclient.InferenceServerClient(balancer.target.grpc) as client:
            client.load_model(model, config=json.dumps(config))

    def drift(of: RunningBalancer, triton: ExplicitTriton) -> list[str]:
        found: list[str] = table(of, triton)["drift"]["configurations"]
        return found

    try:
        await asyncio.to_thread(load, other)
        assert [each.ask("GET", path) for each in tritons] == [other] * len(tritons)
        victim.kill9()
        await until(lambda: not victim.is_running, "it is dead")
        await until(lambda: not ready(balancer, victim), "its models are forgotten")
        await until(lambda: not ready(replica, victim), "the other one knows")
        victim.restart_with()
        await until(
            lambda: all(ready(each, victim) == set(MODELS) for each in (balancer, replica)),
            "it is restored",
        )
        # Each withholds the model until it has compared it; one may find it ready before the other
        # has loaded it for the second time.
        await until(lambda: victim.ask("GET", path) == other, "it runs as on the others")
        restored = balancer.metrics_text() + replica.metrics_text()
        assert 'triton_lb_restored_total{kind="configuration",result="restored"} 1.0' in restored
        assert 'result="failed"' not in restored
        # What only one is told is shown.
        config = {"parameters": {"config": json.dumps(usual)}}
        await asyncio.to_thread(victim.ask, "POST", f"/v2/repository/models/{model}/unload", {})
        await until(lambda: model not in ready(balancer, victim), "the table knows")
        await asyncio.to_thread(victim.ask, "POST", f"/v2/repository/models/{model}/load", config)
        await until(lambda: drift(balancer, victim) == [model], "it is shown")
        assert drift(balancer, tritons[1]) == []
    finally:
        await asyncio.to_thread(load, usual)
    await until(lambda: drift(balancer, victim) == [], "all are alike again")
