"""Which models are loaded where, in the admin API and as a table."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.api import NoPlacement
from lb.admin.app import make_admin_app
from lb.admin.live_placement import placement_rows
from lb.admin.models import PlacementView
from lb.admin.openapi import openapi_document
from lb.admin.operations import PLACEMENT
from lb.cli.tables import placement_lines
from lb.control.membership import Membership
from lb.control.model_placement import PlacedModel, PlacementError, PlacementStatus
from lb.placing.planner import Failure, Step
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems

STATUS = PlacementStatus(
    mode="on_demand",
    max_models=2,
    memory=70 << 30,
    unreturned={"a": 1 << 29},
    managed=("a", "b"),
    left_alone=("c",),
    models=(
        PlacedModel(
            model=b"bert",
            backend="a",
            state="ready",
            age_s=12.3456,
            value=2.5,
            load=0.256,
            size=3 << 30,
            size_source="measured",
            kept="pinned",
        ),
        PlacedModel(
            model=b"gpt\x1b",
            backend="b",
            state="loading",
            age_s=None,
            value=0.0,
            load=0.0,
            size=0,
            size_source="guessed",
            kept="",
        ),
    ),
    wanted=((b"gpt", 1.5),),
    steps=(Step(b"gpt", "b", (b"old",)),),
    failures=((b"bad", "a", Failure("out of memory", 100.0, 2)),),
)


class Placed(NoPlacement):
    """Placement that does nothing but note what it was asked for."""

    def __init__(self, status: PlacementStatus) -> None:
        self._status = status
        self.asked: list[tuple[bytes, object]] = []

    def status(self) -> PlacementStatus:
        return self._status

    def pin(self, model: bytes, *, is_pinned: bool) -> None:  # type: ignore[override]
        self._check(model)
        self.asked.append((model, is_pinned))

    async def evict(self, model: bytes, backend: str = "") -> None:  # type: ignore[override]
        self._check(model)
        self.asked.append((model, backend))

    @staticmethod
    def _check(model: bytes) -> None:
        if model == b"unknown":
            raise LookupError("no managed backend has a model 'unknown'")
        if model == b"used":
            raise PlacementError("requests or sequences use it on a")


async def shown(status: PlacementStatus) -> PlacementView:
    directory = make_pool()
    app = make_admin_app(
        directory,
        Membership(directory),
        version="1",
        clock=lambda: 111.0,
        placement=Placed(status),
    )
    async with TestClient(TestServer(app)) as client, client.get(PLACEMENT) as answer:
        found = await answer.json()
    assert problems(found, "PlacementView", openapi_document("1")) == []
    return PlacementView.model_validate(found)


async def test_models_and_what_is_done_about_them_are_shown() -> None:
    view = await shown(STATUS)
    assert view.failures[0].retry_in_s == 19.0
    assert placement_lines(view) == [
        "BACKEND  MODEL    STATE    AGE  VALUE  LOAD    SIZE  KEPT",
        "a        bert     ready    12s    2.5   26%  3.0GiB  pinned",
        r"b        gpt\x1b  loading    -    0.0    0%       -",
        "requests wait for gpt",
        "loading gpt on b in place of old",
        "bad was not loaded on a, again in 19s: out of memory",
        "do not load models on request: c",
        "0.5 GiB of unloaded models did not come back on a",
        "placement.mode is on_demand, at most 2 models and 70 GiB on each of 2 backends",
    ]


@pytest.mark.parametrize(("mode", "line"), [("observe", "would load"), ("on_demand", "loading")])
async def test_a_plan_is_told_from_what_is_done(mode: str, line: str) -> None:
    view = await shown(PlacementStatus(mode=mode, steps=(Step(b"m", "a", ()),)))
    assert f"{line} m on a" in placement_lines(view)


async def test_without_placement_there_is_nothing_to_show() -> None:
    view = await shown(PlacementStatus())
    assert placement_lines(view)[-1] == "placement.mode is off"


async def test_operators_pin_unpin_and_evict() -> None:
    directory = make_pool()
    placed = Placed(STATUS)
    app = make_admin_app(directory, Membership(directory), version="1", placement=placed)
    json = {"headers": {"content-type": "application/json"}}
    async with TestClient(TestServer(app)) as client:
        for path, status in (
            ("bert/pin", 200),
            ("bert/unpin", 200),
            ("a%2Fb/evict?backend=a", 200),
            ("bert/evict", 200),
            ("unknown/pin", 404),
            ("unknown/evict", 404),
            ("used/evict", 409),
            ("used/unpin", 409),
            ("bert/evict?where=a", 400),
        ):
            async with client.post(f"{PLACEMENT}/models/{path}", **json) as answer:
                found = await answer.json()
            assert answer.status == status, path
            if status == 200:
                assert problems(found, "PlacementView", openapi_document("1")) == []
            else:
                assert found["error"]
    assert placed.asked == [(b"bert", True), (b"bert", False), (b"a/b", "a"), (b"bert", "")]


async def test_a_process_without_placement_refuses_to_change_it() -> None:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1")
    json = {"headers": {"content-type": "application/json"}}
    async with TestClient(TestServer(app)) as client:
        for action in ("pin", "unpin", "evict"):
            async with client.post(f"{PLACEMENT}/models/m/{action}", **json) as answer:
                assert answer.status == 409


def test_the_live_document_shows_what_is_placed_and_what_is_done() -> None:
    rows = {each["backend"]: each for each in placement_rows(STATUS)}
    assert rows["a"]["models"] == ["bert"]
    assert rows["a"]["room"] == "1 of 2"
    assert rows["a"]["note"] == "bad was not loaded: out of memory"
    assert rows["b"]["models"] == ["gpt\x1b (loading)"]
    assert rows["b"]["note"] == "loading gpt in place of old"
    observed = PlacementStatus(mode="observe", managed=("a",), steps=(Step(None, "a", (b"m",)),))
    assert placement_rows(observed)[0]["note"] == "would unload m"
    assert placement_rows(PlacementStatus()) == []
