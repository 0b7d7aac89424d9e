"""What a class of the relay is, stands in it and in one base at most.

A class cut into several by inheritance can only be understood together with all of them, so parts
are composed. Protocols, and traits, which compiled code has in their place, say what others need of
a class and are not counted; nor are bases outside `lb.proxy`: those of asyncio, and the codecs of
connections (docs/decisions/0021-compiling.md).
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted((ROOT / "lb" / "proxy").rglob("*.py"))
}


def classes() -> dict[str, set[str]]:
    """Where the names of the relay's classes lead, each with the full names of its bases."""
    bases: dict[str, set[str]] = {}
    seams: set[str] = set()
    for module, tree in MODULES.items():
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found = {name_of(base) for base in node.bases}
                bases[f"{module}.{node.name}"] = {
                    imported.get(name, f"{module}.{name}") for name in found
                }
                if "Protocol" in found or "trait" in map(ast.unparse, node.decorator_list):
                    seams.add(f"{module}.{node.name}")
    known = bases.keys() - seams
    return {name: bases[name] & known for name in known}


def name_of(base: ast.expr) -> str:
    """The name of a base, without its type arguments."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def ancestors(name: str, bases: dict[str, set[str]]) -> set[str]:
    """All classes of the relay that a class is derived from."""
    return bases[name].union(*(ancestors(base, bases) for base in bases[name]))


def test_no_class_of_the_relay_is_derived_from_more_than_one_other() -> None:
    bases = classes()
    deep = {name: sorted(found) for name in bases if len(found := ancestors(name, bases)) > 1}
    assert deep == {}


def test_attributes_of_the_relay_are_not_looked_for_by_chance() -> None:
    found = [
        f"{module}: {node.lineno}"
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in {"getattr", "hasattr", "setattr"}
    ]
    assert found == []
