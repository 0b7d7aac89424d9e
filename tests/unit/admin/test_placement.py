"""Which models are loaded where, in the admin API and as a table."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.admin.models import PlacementView
from lb.admin.openapi import openapi_document
from lb.admin.operations import PLACEMENT
from lb.cli.tables import placement_lines
from lb.control.membership import Membership
from lb.control.model_placement import PlacedModel, PlacementStatus
from lb.placing.planner import Failure, Step
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems

STATUS = PlacementStatus(
    mode="on_demand",
    max_models=2,
    managed=("a", "b"),
    left_alone=("c",),
    models=(
        PlacedModel(
            model=b"bert", backend="a", state="ready", age_s=12.3456, value=2.5, kept="pinned"
        ),
        PlacedModel(model=b"gpt\x1b", backend="b", state="loading", age_s=None, value=0.0, kept=""),
    ),
    wanted=((b"gpt", 1.5),),
    steps=(Step(b"gpt", "b", (b"old",)),),
    failures=((b"bad", "a", Failure("out of memory", 100.0, 2)),),
)


async def shown(status: PlacementStatus) -> PlacementView:
    directory = make_pool()
    app = make_admin_app(
        directory,
        Membership(directory),
        version="1",
        clock=lambda: 111.0,
        placement=lambda: status,
    )
    async with TestClient(TestServer(app)) as client, client.get(PLACEMENT) as answer:
        found = await answer.json()
    assert problems(found, "PlacementView", openapi_document("1")) == []
    return PlacementView.model_validate(found)


async def test_models_and_what_is_done_about_them_are_shown() -> None:
    view = await shown(STATUS)
    assert view.failures[0].retry_in_s == 19.0
    assert placement_lines(view) == [
        "BACKEND  MODEL    STATE    AGE  VALUE  KEPT",
        "a        bert     ready    12s    2.5  pinned",
        r"b        gpt\x1b  loading    -    0.0",
        "requests wait for gpt",
        "loading gpt on b in place of old",
        "bad was not loaded on a, again in 19s: out of memory",
        "do not load models on request: c",
        "placement.mode is on_demand, at most 2 models on each of 2 backends",
    ]


@pytest.mark.parametrize(("mode", "line"), [("observe", "would load"), ("on_demand", "loading")])
async def test_a_plan_is_told_from_what_is_done(mode: str, line: str) -> None:
    view = await shown(PlacementStatus(mode=mode, steps=(Step(b"m", "a", ()),)))
    assert f"{line} m on a" in placement_lines(view)


async def test_without_placement_there_is_nothing_to_show() -> None:
    view = await shown(PlacementStatus())
    assert placement_lines(view)[-1] == "placement.mode is off"
