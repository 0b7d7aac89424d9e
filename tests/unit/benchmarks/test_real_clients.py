"""What perf_analyzer prints, and the table of real clients."""

from __future__ import annotations

import pytest

from benchmarks.load.drivers import Load
from benchmarks.load.processes import BenchError
from benchmarks.load.proxies import Proxy
from benchmarks.load.real_client import play
from benchmarks.load.real_clients import Client, Outcome, make_section, parse_report

_REPORT = """\
Request concurrency: 1
  Client:
    Request count: 612
    Throughput: 408 infer/sec
    Avg latency: 2440 usec (standard deviation 300 usec)
    p50 latency: 2400 usec
    p90 latency: 2800 usec
    p95 latency: 3000 usec
    p99 latency: 3600 usec
"""


def test_figures_of_perf_analyzer_are_read() -> None:
    load = parse_report(_REPORT)
    assert (load.requests, load.seconds) == (612, 1.5)
    assert (load.p50_us, load.p99_us) == (2400, 3600)


@pytest.mark.parametrize("report", ["", _REPORT.replace("p99", "p98"), _REPORT + "Failed: 3"])
def test_a_report_without_figures_or_with_failures_is_an_error(report: str) -> None:
    with pytest.raises(BenchError):
        parse_report(report)


def test_a_paced_client_asks_at_the_rate_and_counts_from_when_a_request_was_due() -> None:
    asked = []
    result = play(lambda: asked.append(1), seconds=0.2, rate=100.0)
    assert result["requests"] == len(asked)
    assert 5 <= len(asked) <= 21
    free = play(lambda: asked.append(1), seconds=0.05, rate=0.0)
    assert free["requests"] > 21
    assert 0 <= free["p50_us"] <= free["p99_us"]


def _never(_way: Proxy, _at_once: int, _rate: float, _seconds: float, _core: int) -> Load:
    raise AssertionError("nothing is measured here")


def test_the_table_says_what_each_way_adds_and_who_failed() -> None:
    outcome = Outcome(Client("perf_analyzer HTTP", "http", 16, _never), "half", 200.0)
    outcome.samples = {
        "direct": [Load(100, 1.0, 2000.0, 4000.0, 5000.0)],
        "triton-lb": [Load(100, 1.0, 2100.0, 4500.0, 5000.0)],
    }
    outcome.errors = {"envoy": "no version"}
    section = make_section([outcome])
    assert [row[2:] for row in section.rows[1:]] == [
        ("direct", "100", "2.00", "", "4.00", ""),
        ("triton-lb", "100", "2.10", "+0.10", "4.50", "+0.50"),
        ("envoy", "failed", "", "", "", ""),
    ]
    assert not section.failures
    outcome.errors["triton-lb"] = "broke"
    assert make_section([outcome]).failures == ["perf_analyzer HTTP, triton-lb: broke"]
