"""Tables of a kept run in the pages for people."""

from __future__ import annotations

import re

from benchmarks import headlines
from benchmarks.load import publish
from benchmarks.load.bench import Plan
from benchmarks.load.cells import CELLS, select
from benchmarks.load.processes import Cores
from benchmarks.load.report import Report
from benchmarks.load.results import Result, Sample
from benchmarks.load.sections import Section

PROXIES = ["triton-lb", "triton-lb-compiled", "envoy"]


def _report() -> Report:
    def result(cpu_us: float) -> Result:
        return Result([Sample(cpu_us, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0, 0.5)])

    plan = Plan(select(["http-small-64"]), PROXIES, 3, 1.0, 2, Cores(0, 1, 1))
    row = dict(zip(PROXIES, map(result, (24.3, 15.6, 50.0)), strict=True))
    idle = [
        {"protocol": "http", "idle": count, "proxy": name, "bytes_each": each}
        for name, each in (("triton-lb", 2048.0), ("envoy", 14336.0))
        for count in (0, 1000, 9000)
    ]
    return Report(
        plan, {"cpu": "X"}, {"http-small-64": row}, (), [Section("idle", "", [], data=idle)]
    )


def test_what_stands_between_marks_is_written_anew_and_all_else_stays() -> None:
    page = "a\n<!-- bench:one -->\nold\n<!-- /bench -->\nb\n<!-- bench:two -->\n<!-- /bench -->\n"
    once = publish.replaced(page, {"one": "new"})
    assert once == page.replace("old", "\nnew\n")
    assert publish.replaced(once, {"one": "new"}) == once


def test_cost_is_shown_for_every_proxy_and_rates_for_ours() -> None:
    report = _report()
    assert "| 24.3 | 15.6 | 50.0 |" in publish.cost(report)
    assert "| 41,000 | 64,000 |" in publish.rates(report)
    assert "| HTTP/1.1 | 2.0 |  | 14.0 |" in publish.memory(report)


def test_the_pages_have_a_place_for_every_table_and_none_for_others() -> None:
    pages = {*publish.PAGES, *headlines.PAGES}
    text = "".join(page.read_text() for page in pages)
    places = re.findall("<!-- bench:([a-z0-9]+) -->", text)
    of_results = {"p99", "headlines", "unequal", "faults"}
    assert sorted(places) == sorted({"cost", "rates", "memory"} | of_results)


def test_the_tables_name_cells_that_exist() -> None:
    names = {cell.name for cell in CELLS}
    assert names >= {*publish._SHOWN, *publish._RATED}
