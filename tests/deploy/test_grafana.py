"""The dashboard: every query is valid PromQL about series that there are."""

from __future__ import annotations

import http.client
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.deploy.test_prometheus import (
    LIMIT_S,
    Prometheus,
    promtool,
    watched_pair,
)
from tests.fakes.process import ChildProcess, wait_until
from tests.fakes.promql import faults, series_of_ours
from tests.fakes.serving import metric

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
    "Configuration applied", "Demand and capacity of one backend", "Ejections", "Retries",
    "Sequences",
}  # fmt: skip
"""Panels with a query about what need not happen in half a minute of requests to two Tritons: a
reload, a forecast, an ejection, a retry that is refused, a sequence."""

PAUSE_MS = 20
LONG_MS = 3000
BODIES: dict[str, Any] = {
    "sleeper/infer": {
        "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [PAUSE_MS]}]
    },
    "repeat_int32/generate_stream": {"IN": [1, 2, 3], "DELAY": [1, 1, 1], "WAIT": 1},
}
"""By path below `/v2/models/`."""


def send(address: str, path: str, body: object, **headers: str) -> None:
    """Ask, whatever the answer is."""
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{path}", json.dumps(body), headers)
    connection.getresponse().read()
    connection.close()


def send_all(address: str) -> None:
    """Ask for what there are panels about: more at once than the queue takes, a stream, failures
    of a backend, and a head that we refuse."""
    asked = [("sleeper/infer", BODIES["sleeper/infer"])] * 16 + list(BODIES.items())
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(lambda each: send(address, *each), asked))
    send(address, "sleeper/infer", {"inputs": []})
    send(address, "sleeper/infer", {}, TE="a" * 40_000)


def kill_busy(triton: ChildProcess, addresses: dict[str, str]) -> None:
    """Kill `gpu-1` while it executes a request, so that an attempt fails."""
    body = {"inputs": [{**BODIES["sleeper/infer"]["inputs"][0], "data": [LONG_MS]}]}
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(send, addresses["http"], "sleeper/infer", body)
            for _ in range(2)  # one for each Triton
        ]
        series = 'triton_lb_backend_in_flight{backend="gpu-1",protocol="http"}'
        wait_until(
            lambda: metric(addresses["metrics"], series) == 1,
            timeout_s=LIMIT_S,
            what="a request at gpu-1",
        )
        triton.signal(signal.SIGKILL)
        for each in asked:
            each.result()


def test_queries_are_answered_by_a_prometheus(tmp_path: Path) -> None:
    """One that has scraped two simulated Tritons, of which one was killed."""
    scheduling = {"max_requests_per_backend": 1, "max_queue_size": 4}
    with watched_pair(tmp_path, scheduling=scheduling) as (prometheus, tritons, addresses):
        wait_until(lambda: prometheus.ask("rules") is not None, timeout_s=LIMIT_S, what="a start")
        send_all(addresses["http"])
        kill_busy(tritons[1], addresses)
        down = quote('sum(triton_lb_backend_state{backend="gpu-1",state="down"})')
        silent: list[set[str]] = []

        def has_seen_it_all() -> bool:
            send_all(addresses["http"])
            silent.append(unanswered(prometheus) - QUIET)
            # Rates are of the last seconds, and not all are above zero in the same ones.
            return not set.intersection(*silent) and bool(prometheus.value(down))

        wait_until(has_seen_it_all, timeout_s=2 * LIMIT_S, what="series for all panels")


def unanswered(prometheus: Prometheus) -> set[str]:
    """Titles of panels, and names of annotations, without a series. A query that fails fails."""
    silent = set()
    for place, expression in queries():
        expression = re.sub(r"\$(job|instance|backend)\b", ".*", expression)
        answer = prometheus.ask(
            "query?query=" + quote(expression.replace("$__rate_interval", "10s"))
        )
        assert answer is not None, f"{place}: refused by Prometheus: {expression}"
        if not answer["result"]:
            silent.add(re.sub(" [A-Z]$", "", place))
    return silent
