"""The dashboard: every query is valid PromQL about series that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_prometheus import promtool, recorded
from tests.fakes.promql import faults, series_of_ours

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "triton-lb.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def queries() -> list[tuple[str, str]]:
    """Where each stands, and what it asks."""
    found = [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in PANELS
        for target in panel["targets"]
    ]
    return found + [(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]


@pytest.mark.parametrize(("place", "expression"), queries(), ids=[place for place, _ in queries()])
def test_queries_are_about_series_that_there_are(place: str, expression: str) -> None:
    assert faults(expression, series_of_ours() | recorded()) == []


def test_queries_are_valid(tmp_path: Path) -> None:
    """As recording rules, which is what `promtool` checks."""
    rules = [
        {"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    groups = [{"name": "queries", "rules": rules}]
    path.write_text(yaml.safe_dump({"groups": groups}))
    promtool("check", "rules", str(path))


def test_variables_are_filled_from_series_that_there_are() -> None:
    for name in ("job", "instance", "backend"):
        query = VARIABLES[name]["query"]["query"]
        expression, label = query.removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        assert label == name
        assert faults(f"sum by ({label}) ({expression})", series_of_ours()) == []


def test_panels_lie_beside_each_other_and_have_their_own_numbers() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_panel_goes_by_the_variables() -> None:
    for place, expression in queries():
        assert 'job=~"$job"' in expression, place
