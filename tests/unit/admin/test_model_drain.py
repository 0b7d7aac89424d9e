"""Draining one model on one backend through the admin API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.admin.openapi import openapi_document
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.domain.backend import Backend
from lb.domain.model import ModelEntry, ModelState, ModelUse
from lb.health.models import ModelList
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import answer_problems

DOCUMENT = openapi_document("1.2.3")
MODEL = "/api/v1/backends/{name}/models/{model}"


class Bench:
    """The API over backends of which `a` lists the model `de/tector`."""

    def __init__(self, directory: BackendDirectory) -> None:
        self.directory = directory
        self.use = ModelUse(3, 1)
        directory.model_use = self._use_of
        record = directory.find("a")
        record.models.listed(ModelList([ModelEntry(b"de/tector", b"1", ModelState.READY)]), 110.0)
        app = make_admin_app(directory, Membership(directory), version="1.2.3", clock=lambda: 111.0)
        self.client: TestClient[web.Request, web.Application] = TestClient(TestServer(app))

    def _use_of(self, backend: Backend, model: bytes) -> ModelUse:
        assert (backend.name, model) == ("a", b"de/tector")
        return self.use

    async def ask(self, method: str, name: str, model: str, action: str) -> tuple[int, Any]:
        path = f"/api/v1/backends/{name}/models/{model}{action}"
        response = await self.client.request(method, path)
        answer = await response.json()
        documented = answer_problems(DOCUMENT, method, MODEL + action, response.status, answer)
        assert documented == []
        return response.status, answer


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(make_pool())
    async with made.client:
        yield made


async def test_a_model_is_drained_until_it_is_enabled(bench: Bench) -> None:
    running = {"backend": "a", "model": "de/tector", "in_flight": 3, "open_sequences": 1}
    assert await bench.ask("POST", "a", "de%2Ftector", "/drain") == (
        200,
        {**running, "draining": True, "empty": False},
    )
    assert bench.directory.find("a").drained_models == {b"de/tector"}
    async with bench.client.get("/api/v1/backends/a/models") as response:
        (listed,) = (await response.json())["models"]
    assert (listed["name"], listed["state"], listed["draining"]) == ("de/tector", "ready", True)
    bench.use = ModelUse(0, 0)
    _, answer = await bench.ask("GET", "a", "de%2Ftector", "")
    assert (answer["draining"], answer["empty"]) == (True, True)
    _, answer = await bench.ask("POST", "a", "de%2Ftector", "/enable")
    assert answer["draining"] is False
    assert bench.directory.find("a").drained_models == frozenset()


async def test_a_drain_may_be_ended_though_the_model_is_not_listed_any_more(bench: Bench) -> None:
    await bench.ask("POST", "a", "de%2Ftector", "/drain")
    bench.directory.find("a").models.listed(ModelList(), 111.0)
    assert (await bench.ask("GET", "a", "de%2Ftector", ""))[0] == 200
    assert (await bench.ask("POST", "a", "de%2Ftector", "/enable"))[0] == 200


@pytest.mark.parametrize(
    ("name", "model", "error"),
    [
        ("x", "de%2Ftector", "there is no backend 'x'; there are: a, b"),
        ("a", "detectr", "backend 'a' has no model 'detectr'"),
    ],
)
async def test_what_is_not_there_cannot_be_drained(
    bench: Bench, name: str, model: str, error: str
) -> None:
    assert await bench.ask("POST", name, model, "/drain") == (404, {"error": error})
