"""The defects themselves: what is found, how it is named, and what it makes of a module."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.mutate import apply, choose, find

SOURCE = """
LIMIT = 3

class Queue:
    size: int = 7

    def offer(self, entry: int = 1) -> bool:
        \"\"\"Take it.\"\"\"
        if self.open and not self.full:
            self.waiting = 5
            self.news()
        while entry < 9:
            entry += 2
        return True
"""

CHANGES = [
    ("joined", "if self.open or not self.full:"),
    ("negated", "if not (self.open and (not self.full)):"),
    ("not", "if self.open and self.full:"),
    ("removed", "pass"),
    ("compared", "while entry <= 9:"),
    ("constant", "self.waiting = 6"),
    ("returned", "return False"),
]


@pytest.mark.parametrize(("kind", "changed"), CHANGES)
def test_a_defect_of_every_kind_is_found_and_made(kind: str, changed: str) -> None:
    mutant = next(each for each in find("queue.py", SOURCE) if each.kind == kind)
    assert mutant.function == "Queue.offer"
    assert mutant.text.endswith(f"->  {changed}")
    lines = [line.strip() for line in apply(SOURCE, mutant).splitlines()]
    assert changed in lines


def test_nothing_outside_of_functions_is_changed() -> None:
    assert {each.function for each in find("queue.py", SOURCE)} == {"Queue.offer"}


def test_names_differ_and_stay_when_something_else_of_the_module_changes() -> None:
    names = [each.name for each in find("queue.py", SOURCE)]
    assert len(set(names)) == len(names)
    found = find("queue.py", f"def helper():\n    return 4\n{SOURCE}")
    assert [each.name for each in found if each.function != "helper"] == names


def test_every_defect_changes_its_module() -> None:
    as_it_is = ast.unparse(ast.parse(SOURCE)) + "\n"
    made = [apply(SOURCE, mutant) for mutant in find("queue.py", SOURCE)]
    assert as_it_is not in made
    for changed in made:
        compile(changed, "queue.py", "exec")


def test_the_choice_depends_on_the_seed_and_on_the_module_alone() -> None:
    sources = {"a.py": SOURCE, "b.py": SOURCE}
    chosen = choose(sources, 6, most=3, seed=1)
    assert chosen == choose(sources, 6, most=3, seed=1)
    assert [each.module for each in chosen].count("a.py") == 3
    changed = choose({**sources, "b.py": f"{SOURCE}\n"}, 6, most=3, seed=1)
    of_a = {each for each in chosen if each.module == "a.py"}
    assert of_a == {each for each in changed if each.module == "a.py"}


def test_a_place_that_is_gone_is_told() -> None:
    (first, *_) = find("queue.py", SOURCE)
    with pytest.raises(LookupError):
        apply("x = 1\n", first)
