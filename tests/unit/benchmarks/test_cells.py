"""Which cells there are, and which of them a run has."""

from __future__ import annotations

from itertools import groupby

import pytest

from benchmarks.load import payloads
from benchmarks.load.bench import Plan
from benchmarks.load.cells import CELLS, Driver, select
from benchmarks.load.processes import Cores
from benchmarks.load.targets import TARGETS


def test_cell_names_are_distinct_and_patterns_select_by_name() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert [cell.name for cell in select(["grpc-small-8x?"])] == [
        "grpc-small-8x1",
        "grpc-small-8x8",
    ]


def test_a_quick_run_has_the_core_cells_and_a_whole_one_all() -> None:
    assert select([]) == list(CELLS)
    assert select([], core=True) == [cell for cell in CELLS if cell.core]
    assert 10 < len(select([], core=True)) < 20


def test_core_cells_have_the_rounds_and_others_their_own() -> None:
    plan = Plan(CELLS, ["triton-lb", "nginx"], 5, 1.0, 2, Cores(0, 1, 1), other_rounds=2)
    assert {plan.rounds_of(cell) for cell in CELLS if cell.core} == {5}
    assert {plan.rounds_of(cell) for cell in CELLS if not cell.core} == {2}
    assert (plan.peers, plan.baseline) == (["nginx"], "nginx")


def test_a_pattern_without_a_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="no cell is called 'nonsense'"):
        select(["nonsense"])


def test_a_cell_at_half_a_rate_brings_the_cell_that_gives_the_rate_before_it() -> None:
    assert [cell.name for cell in select(["http-tls-small-64-half-rate"])] == [
        "http-tls-small-64",
        "http-tls-small-64-half-rate",
    ]
    for cell in CELLS:
        if cell.half_of:
            base = next(each for each in CELLS if each.name == cell.half_of)
            assert CELLS.index(base) < CELLS.index(cell)
            assert base.site == cell.site
            assert base.core or not cell.core


def test_cells_of_a_site_stand_together_so_that_it_is_started_once() -> None:
    sites = [site for site, _ in groupby(cell.site for cell in CELLS)]
    assert len(sites) == len(set(sites))


def test_every_cell_of_a_target_exists() -> None:
    names = {cell.name for cell in CELLS}
    wanted = {cell for target in TARGETS for cell in (*target.cells, target.instead_of) if cell}
    assert wanted <= names


def test_bodies_of_cells_are_among_those_that_are_written() -> None:
    large = {"http-image", "http-large"}
    assert set(payloads.JSON_HEADS) == large
    bodies = {cell.body for cell in CELLS}
    small = {"http-small", "grpc-small", "grpc-unscheduled"}
    assert bodies == small | {"grpc-image", "grpc-large", "grpc-foreign"} | large


def test_the_unit_says_what_cpu_is_divided_by() -> None:
    units = {cell.driver: cell.unit for cell in CELLS}
    assert units[Driver.STREAM] == "message and echo"
    assert units[Driver.EVENTS] == "event"
    assert units[Driver.WRK] == "request"
