from __future__ import annotations

import json

from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.admin.models import render_models
from lb.admin.openapi import openapi_document
from lb.control.membership import Membership
from lb.control.model_views import models_view
from lb.domain.model import ModelEntry, ModelState
from lb.health.models import ModelList
from tests.fakes.pool import READY_AT, make_pool
from tests.unit.admin.schema import problems


def test_the_models_of_a_backend_are_as_documented() -> None:
    pool = make_pool()
    record = pool.find("a")
    record.models.listed(
        ModelList(
            [
                ModelEntry(b"simple", b"1", ModelState.READY),
                ModelEntry(b"other", b"", ModelState.UNAVAILABLE, "unloaded"),
            ]
        ),
        READY_AT,
    )
    rendered = render_models(models_view(pool, record, READY_AT + 2))
    assert rendered == {
        "listed": True,
        "age_s": 2.0,
        "models": [
            {"name": "simple", "version": "1", "state": "ready", "reason": ""},
            {"name": "other", "version": "", "state": "unavailable", "reason": "unloaded"},
        ],
        "regions": [],
        "drift": {"models": [], "configurations": [], "settings": []},
    }
    document = openapi_document("1")
    assert problems(rendered, document["components"]["schemas"]["Models"], document) == []


async def test_models_are_asked_for_by_backend() -> None:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1", clock=lambda: READY_AT)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/api/v1/backends/a/models")
        assert answer.status == 200
        assert json.loads(await answer.text())["listed"] is None
        assert (await client.get("/api/v1/backends/nobody/models")).status == 404
