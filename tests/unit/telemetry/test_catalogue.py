"""The catalogue is complete, and the page about it is up to date."""

from __future__ import annotations

from pathlib import Path

from lb.telemetry.catalogue import COLLECTED, SCRAPE_CUTS, SCRAPE_FAILURES, MetricType, markdown

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_printed_from_the_catalogue() -> None:
    assert PAGE.read_text() == markdown(), "run: python -m lb.telemetry.catalogue > docs/metrics.md"


def test_names_are_unique_and_start_with_ours() -> None:
    names = [spec.name for spec in (*COLLECTED, SCRAPE_FAILURES, SCRAPE_CUTS)]
    assert len(names) == len(set(names))
    assert all(name.startswith("triton_lb_") for name in names)


def test_counters_and_only_counters_end_in_total() -> None:
    for spec in (*COLLECTED, SCRAPE_FAILURES, SCRAPE_CUTS):
        assert spec.name.endswith("_total") == (spec.type is MetricType.COUNTER)
