"""The dashboard: every query is valid PromQL about series that there are."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.deploy.test_prometheus import (
    LIMIT_S,
    Prometheus,
    ask,
    promtool,
    watched_pair,
)
from tests.fakes.process import wait_until
from tests.fakes.promql import faults, series_of_ours

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "triton-lb.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
OPEN = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PANELS = [*OPEN, *(panel for row in ROWS for panel in row["panels"])]
"""Those of closed rows stand in their rows."""
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
    """It does without the recording rules, which not everybody loads."""
    assert faults(expression, series_of_ours()) == []


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


def test_panels_have_their_own_numbers() -> None:
    numbers = [panel["id"] for panel in (*ROWS, *PANELS)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    "panels",
    [DASHBOARD["panels"], *(row["panels"] for row in ROWS)],
    ids=["open", *(row["title"] for row in ROWS)],
)
def test_panels_lie_beside_each_other(panels: list[dict[str, Any]]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_rows_that_are_not_for_daily_use_are_closed() -> None:
    assert [row["title"] for row in ROWS if not row["collapsed"]] == [
        "Overview", "Requests", "Models", "Backends",
    ]  # fmt: skip
    assert all(bool(row["panels"]) is row["collapsed"] for row in ROWS)


def test_the_dashboard_leads_to_the_page() -> None:
    assert [link["url"] for link in DASHBOARD["links"]] == ["${page}"]
    assert VARIABLES["page"]["type"] == "textbox"


def test_every_panel_goes_by_the_variables() -> None:
    for place, expression in queries():
        assert 'job=~"$job"' in expression, place


QUIET = {
    "Backends needed and eligible", "Between answers by model, p99", "Configuration applied",
    "Demand and capacity of one backend", "Ejections", "Errors by reason", "Failures",
    "Failures by model", "First answer by model, p99", "Hedges", "Position in the queue, p99",
    "Queued requests", "Reasons for queueing", "Refusals of full queues", "Retries", "Sequences",
}  # fmt: skip
"""Panels about what need not happen in half a minute of requests to two Tritons."""


def test_queries_are_answered_by_a_prometheus(tmp_path: Path) -> None:
    """One that has scraped two simulated Tritons, of which one was killed."""
    with watched_pair(tmp_path) as (prometheus, tritons, addresses):
        tritons[1].signal(signal.SIGKILL)
        down = quote('sum(triton_lb_backend_state{backend="gpu-1",state="down"})')

        def has_seen_it_all() -> bool:
            ask(addresses["http"], "sleeper", "INT32", [1] * 10)
            return not unanswered(prometheus) - QUIET and bool(prometheus.value(down))

        wait_until(has_seen_it_all, timeout_s=LIMIT_S, what="series for all panels")
        assert unanswered(prometheus) <= QUIET


def unanswered(prometheus: Prometheus) -> set[str]:
    """Titles of panels, and names of annotations, without a series. A query that fails fails."""
    silent = set()
    for place, expression in queries():
        expression = re.sub(r"\$(job|instance|backend)\b", ".*", expression)
        answer = prometheus.ask(
            "query?query=" + quote(expression.replace("$__rate_interval", "10s"))
        )
        if answer is None or not answer["result"]:
            silent.add(re.sub(" [A-Z]$", "", place))
    return silent
