"""Adding and removing backends over the admin API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.admin.openapi import openapi_document
from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.domain.backend import Address
from lb.proxy.variants import NameRules, VariantBook, VariantOptions, VariantRules
from lb.settings.backends import BackendSettings, HealthSettings
from lb.telemetry.collector import SourceStatus
from tests.unit.admin.schema import problems

DOCUMENT = openapi_document("1.2.3")
BACKENDS = "/api/v1/backends"
STATUSES = [
    SourceStatus(name="dns:a", backends=2, updates=3, failures=0, age_s=1.23456, error=""),
    SourceStatus(name="file:/b", backends=0, updates=0, failures=9, age_s=None, error="missing"),
]


class Bench:
    """The API over backends a and b of a configuration."""

    def __init__(self) -> None:
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.membership = Membership(self.directory, clock=lambda: 111.0, most=3)
        self.membership.configure(
            [BackendSettings.model_validate({"name": n, "http": f"{n}:1"}) for n in ("a", "b")],
            HealthSettings(),
        )
        variants = VariantBook(self.directory.ref, lambda: 111.0)
        rules = NameRules(variants=(VariantRules(name="stable", model=b"m", weight=1.0),))
        variants.configure(VariantOptions(names={b"m": rules}))
        app = make_admin_app(
            self.directory,
            self.membership,
            variants=variants,
            version="1.2.3",
            clock=lambda: 111.0,
            own_addresses=lambda: {"listen.http": Address("127.0.0.1", 8000)},
            sources=lambda: STATUSES,
        )
        self.client: TestClient[web.Request, web.Application] = TestClient(TestServer(app))

    @property
    def names(self) -> list[str]:
        return [record.backend.name for record in self.directory.records]

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        response = await self.client.request(method, path, data=data, headers=headers)
        answer = await response.json()
        schema = "Error" if "error" in answer and len(answer) == 1 else "Backend"
        if path != "/api/v1/sources":
            assert problems(answer, schema, DOCUMENT) == []
        return response.status, answer

    async def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        before = self.names
        status, answer = await self.ask(method, path, body)
        assert self.names == before
        return status, answer["error"]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.client:
        yield made


async def test_a_backend_is_added_with_all_its_settings(bench: Bench) -> None:
    status, answer = await bench.ask(
        "POST", BACKENDS, {"name": "c", "grpc": "c:2", "weight": 2, "health": {"fall": 9}}
    )
    assert (status, answer["name"], answer["state"]) == (201, "c", "starting")
    assert (answer["weight"], answer["origin"]) == (2.0, "operator")
    assert bench.names == ["a", "b", "c"]
    assert bench.directory.find("c").member.thresholds.fall == 9


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ([], 400, "expected a JSON object with the settings of one backend"),
        (
            {"name": "c", "wieght": 1},
            400,
            "wieght: unknown key; did you mean weight?; at least one of http and grpc is needed",
        ),
        (
            {"http": "127.0.0.1:8000"},
            400,
            "http: 127.0.0.1:8000 is our own listener listen.http",
        ),
        ({"name": "a", "http": "c:1"}, 409, "there is a backend 'a' already"),
        ({"name": "a"}, 409, "no backend 'a' was removed; to add one, say its addresses"),
    ],
)
async def test_what_cannot_be_added_is_refused_with_every_reason(
    bench: Bench, body: object, status: int, error: str
) -> None:
    assert await bench.refused("POST", BACKENDS, body) == (status, error)


async def test_only_so_many_can_be_added(bench: Bench) -> None:
    await bench.ask("POST", BACKENDS, {"http": "c:1"})
    status, error = await bench.refused("POST", BACKENDS, {"http": "d:1"})
    assert (status, error) == (409, "there are 3 backends already, and may be no more")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff"])
async def test_a_body_that_is_not_json_is_refused(bench: Bench, data: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = await bench.client.post(BACKENDS, data=data, headers=headers)
    assert (response.status, await response.json()) == (400, {"error": "the body is not JSON"})


@pytest.mark.parametrize("path", [BACKENDS, "/api/v1/log-level", "/api/v1/variants/m/shares"])
@pytest.mark.parametrize("charset", ["foo", "hex"])  # the second is an encoding, but none of text
async def test_a_body_in_an_unknown_charset_is_refused(
    bench: Bench, path: str, charset: str
) -> None:
    headers = {"Content-Type": f"application/json; charset={charset}"}
    response = await bench.client.post(path, data=b"{}", headers=headers)
    error = f"Content-Type: unknown charset '{charset}'"
    assert (response.status, await response.json()) == (400, {"error": error})


async def test_a_body_that_would_take_long_to_judge_is_refused(bench: Bench) -> None:
    status, error = await bench.refused("POST", BACKENDS, {str(n): n for n in range(4000)})
    assert (status, error) == (413, "Request Entity Too Large")


async def test_a_removed_backend_can_be_taken_back_by_its_name(bench: Bench) -> None:
    status, answer = await bench.ask("DELETE", f"{BACKENDS}/a")
    assert (status, answer["state"], answer["empty"]) == (200, "removing", True)
    assert bench.names == ["b"]
    assert await bench.refused("GET", f"{BACKENDS}/a") == (
        404,
        "there is no backend 'a'; there are: b",
    )
    status, answer = await bench.ask("POST", BACKENDS, {"name": "a"})
    assert (status, answer["origin"]) == (201, "configuration")
    assert bench.names == ["a", "b"]


async def test_a_removed_backend_shows_when_the_rest_is_cut(bench: Bench) -> None:
    bench.directory.find("a").backend.in_flight = 1
    _, answer = await bench.ask("DELETE", f"{BACKENDS}/a?limit=1m")
    assert (answer["state"], answer["why"], answer["cut_in_s"]) == ("removing", "removed", 60.0)
    _, answer = await bench.ask("DELETE", f"{BACKENDS}/a?limit=5s")
    assert answer["cut_in_s"] == 5.0
    for action in ("drain", "enable", "disable"):
        assert await bench.refused("POST", f"{BACKENDS}/a/{action}") == (
            409,
            "backend a has been removed; add it again",
        )


async def test_a_drain_may_have_a_limit(bench: Bench) -> None:
    _, answer = await bench.ask("POST", f"{BACKENDS}/a/drain?limit=90s")
    assert (answer["state"], answer["cut_in_s"]) == ("draining", 90.0)
    _, answer = await bench.ask("POST", f"{BACKENDS}/a/drain")
    assert answer["cut_in_s"] is None


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("limit=soon", "limit: expected a duration such as 500ms, 1s or 2m, got 'soon'"),
        ("limits=1s", "limits: unknown; only limit may be given"),
    ],
)
async def test_a_bad_query_is_refused(bench: Bench, query: str, error: str) -> None:
    assert await bench.refused("DELETE", f"{BACKENDS}/a?{query}") == (400, error)
    assert await bench.refused("POST", f"{BACKENDS}/a/drain?{query}") == (400, error)


async def test_what_is_not_there_cannot_be_removed(bench: Bench) -> None:
    expected = (404, "there is no backend 'x'; there are: a, b")
    assert await bench.refused("DELETE", f"{BACKENDS}/x") == expected


async def test_the_sources_are_shown_as_documented(bench: Bench) -> None:
    status, answer = await bench.ask("GET", "/api/v1/sources")
    assert status == 200
    assert problems(answer, "Sources", DOCUMENT) == []
    assert answer["sources"][0]["age_s"] == 1.235
    assert answer["sources"][1] == {
        "name": "file:/b",
        "backends": 0,
        "updates": 0,
        "failures": 9,
        "age_s": None,
        "error": "missing",
    }
