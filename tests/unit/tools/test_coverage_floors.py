"""The floors of branch coverage: what is measured per package, and what is below its floor."""

from __future__ import annotations

from tools.coverage_floors import Branches, by_package, problems


def _entry(covered: int, total: int) -> dict[str, dict[str, int]]:
    return {"summary": {"covered_branches": covered, "num_branches": total}}


def test_a_package_has_the_branches_of_its_files_not_of_packages_inside() -> None:
    files = {
        "lb/proxy/dispatch.py": _entry(9, 10),
        "lb/proxy/queue.py": _entry(10, 20),
        "lb/proxy/http1/pool.py": _entry(3, 3),
        "lb/proxy/http1/__init__.py": _entry(0, 0),
        "lb/version/__init__.py": _entry(0, 0),
    }
    found = by_package({"files": files})
    assert found == {"lb/proxy": Branches(19, 30), "lb/proxy/http1": Branches(3, 3)}
    assert found["lb/proxy"].percent == 63.3


def test_packages_below_their_floor_and_without_one_are_told() -> None:
    measured = {"lb/a": Branches(90, 100), "lb/b": Branches(1, 2), "lb/c": Branches(899, 1000)}
    assert problems(measured, {"lb/a": 90.4, "lb/c": 91.0}) == [
        "lb/b has no floor: run with --update",
        "lb/c: 89.9 % of the branches, the floor is 91.0 %",
    ]
