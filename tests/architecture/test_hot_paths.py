"""The fence: hot code is marked, listed, and has its benchmark (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.micro.functions import MARK, hot_functions
from benchmarks.micro.scenes import called

TOP = Path(__file__).parents[2]


def marked() -> dict[str, set[str]]:
    """Modules with marked functions, and the benchmarks that the marks name."""
    found: dict[str, set[str]] = {}
    for path in (TOP / "lb").rglob("*.py"):
        names = set(MARK.findall(path.read_text()))
        if names:
            found[str(path.relative_to(TOP))] = names
    return found


def test_every_mark_names_a_benchmark_that_exists() -> None:
    missing = {name for names in marked().values() for name in names if not (TOP / name).exists()}
    assert missing == set()


def test_architecture_lists_every_module_of_the_fence() -> None:
    text = (TOP / "ARCHITECTURE.md").read_text()
    assert [module for module in marked() if f"`{module}`" not in text] == []


def test_every_module_of_the_fence_is_compiled() -> None:
    """A folder that is new would be interpreted in silence."""
    tree = ast.parse((TOP / "setup.py").read_text())
    wanted = {"_FOLDERS", "_MODULES", "_INTERPRETED"}
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in wanted
    }
    assert lists.keys() == wanted
    compiled = {
        module
        for module in marked()
        if (str(Path(module).parent) in lists["_FOLDERS"] or module in lists["_MODULES"])
        and module not in lists["_INTERPRETED"]
    }
    assert marked().keys() - compiled == set()


def test_no_mark_is_malformed() -> None:
    for path in (TOP / "lb").rglob("*.py"):
        text = path.read_text()
        assert text.count("HOT PATH") == len(MARK.findall(text)), path


async def test_the_micro_benches_call_every_marked_function() -> None:
    codes = called()
    assert [str(each) for each in hot_functions() if each.code not in codes] == []
