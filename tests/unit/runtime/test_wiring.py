"""What the parts of a whole process know of its backends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lb.domain.backend import Backend
from lb.domain.operation import Operation, OperationKind
from lb.runtime.logs import Logs
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.records import grpc_record
from tests.wire.waiting import eventually


def settings(**config: Any) -> Settings:
    return Settings.model_validate({"listen": {"http": "127.0.0.1:8000"}, **config})


@pytest.fixture
async def balancer() -> AsyncIterator[LoadBalancer]:
    config = settings(backends=[{"name": "a", "http": "127.0.0.1:1", "kind": "generic"}])
    logs = Logs(config)
    made = LoadBalancer(config, logs)
    yield made
    await made.aclose()
    logs.close()


async def test_the_relays_know_which_kinds_of_servers_there_are(balancer: LoadBalancer) -> None:
    def kinds() -> set[str]:
        assert balancer.relay.http1.kinds == balancer.relay.http2.kinds
        return {kind.value for kind in balancer.relay.http1.kinds}

    assert kinds() == {"generic"}
    both = [{"http": "127.0.0.1:1", "kind": "generic"}, {"http": "127.0.0.1:2"}]
    balancer.control.discovery.configure(settings(backends=both))
    assert kinds() == {"generic", "triton"}
    balancer.control.discovery.configure(settings(backends=both[1:]))
    assert kinds() == {"triton"}


async def test_what_was_counted_for_a_backend_goes_with_it(balancer: LoadBalancer) -> None:
    a = balancer.control.directory.find("a").backend
    balancer.relay.meter.traffic[0].answers[a] = {200: 1}
    balancer.relay.fan_out.own_calls.count("x", a, "ok")
    balancer.control.discovery.configure(settings(backends=[{"http": "127.0.0.1:2"}]))
    assert balancer.relay.meter.traffic[0].answers == {}
    assert not balancer.relay.fan_out.own_calls.counts


async def test_placement_hears_of_requests_and_of_clients_loads_only_if_it_is_on(
    balancer: LoadBalancer,
) -> None:
    backend = balancer.control.directory.find("a").backend
    placement, model = balancer.control.placement, b"m"
    used = grpc_record(backend=backend, model=model)
    load = Operation("RepositoryModelLoad", OperationKind.CONTROL)
    heard: set[bytes]
    for mode, heard in (("off", set()), ("on_demand", {model})):
        balancer.configure(
            settings(
                backends=[{"name": "a", "http": "127.0.0.1:1", "kind": "generic"}],
                placement={"mode": mode, "max_models": 1},
            )
        )
        balancer.relay.dispatcher.accounts.requests.finished(used)
        balancer.relay.fan_out.news.control_done(load, model, (backend,))
        assert (placement._used, placement.planner.kept) == (heard, heard)
        assert balancer.control.restorer.restores_models is (mode == "off")


async def test_nothing_remembers_backends_that_are_gone(balancer: LoadBalancer) -> None:
    balancer.control.probes.start()
    balancer.control.models.start()
    for number in range(20):
        entries = [
            {"name": f"gone-{number}-{each}", "http": f"127.0.0.{each}:1"} for each in (1, 2, 3)
        ]
        balancer.control.discovery.configure(settings(backends=entries))
        await asyncio.sleep(0)
        balancer.control.directory.check(balancer.relay.dispatcher.clock())
    for _ in range(5):
        await asyncio.sleep(0)
    running = [task.get_name() for task in asyncio.all_tasks()]
    assert [name for name in running if "gone-" in name and "gone-19-" not in name] == []

    def remembered() -> set[str]:
        gc.collect()
        known = {record.backend for record in balancer.control.directory.records}
        alive = {each for each in gc.get_objects() if isinstance(each, Backend)}
        return {each.name for each in alive - known if each.name.startswith("gone")}

    # Sequences are swept once a second: those that were there at the last sweep go with the next.
    await eventually(lambda: not remembered())


async def test_variables_of_opentelemetry_hold_where_the_file_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings.model_validate({"listen": {"http": "127.0.0.1:0"}})
    logs = Logs(settings)
    plain = LoadBalancer(settings, logs)
    assert plain.relay.dispatcher.tracer.rules is None
    await plain.aclose()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    traced = LoadBalancer(settings, logs)
    assert traced.settings is settings
    assert traced.exporter.options.endpoint == "http://127.0.0.1:1/v1/traces"
    rules = traced.relay.dispatcher.tracer.rules
    assert rules is not None
    assert rules.ratio == 1.0
    await traced.aclose()
    logs.close()
