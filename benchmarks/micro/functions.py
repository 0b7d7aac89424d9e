"""Finds the functions that are marked `# HOT PATH`, and their live objects."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

TOP = Path(__file__).parents[2]
MARK = re.compile(r"# HOT PATH \((benchmarks/[^)]+)\)\.")


@dataclass(frozen=True)
class HotFunction:
    """One marked function: its module, its name within, and the benchmark that the mark names."""

    module: str
    name: str
    benchmark: str

    def __str__(self) -> str:
        return f"{self.module.removeprefix('lb.')}:{self.name}"

    @property
    def function(self) -> FunctionType:
        """The function itself."""
        found = self._owner.__dict__[self.name.rpartition(".")[2]]
        assert isinstance(found, FunctionType), self
        return found

    @property
    def code(self) -> CodeType:
        """What the interpreter runs."""
        return self.function.__code__

    @property
    def _owner(self) -> Any:
        owner: Any = importlib.import_module(self.module)
        for name in self.name.split(".")[:-1]:
            owner = owner.__dict__[name]
        return owner

    def replace(self, new: FunctionType) -> None:
        """Put another function in its place, wherever it was imported."""
        old = self.function
        if isinstance(self._owner, type):
            setattr(self._owner, old.__name__, new)
            return
        for module in tuple(sys.modules.values()):
            for name, value in tuple(vars(module).items()):
                if value is old:
                    setattr(module, name, new)


def hot_functions() -> list[HotFunction]:
    """All of them, by module and line."""
    return [each for path in sorted((TOP / "lb").rglob("*.py")) for each in _in_file(path)]


def _in_file(path: Path) -> Iterator[HotFunction]:
    text = path.read_text()
    lines = [
        (number, mark[1])
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := MARK.search(line))
    ]
    if not lines:
        return
    module = ".".join(path.relative_to(TOP).with_suffix("").parts)
    functions = list(_functions(ast.parse(text), ""))
    for number, benchmark in lines:
        name = next(name for name, first, last in functions if first <= number <= last)
        yield HotFunction(module, name, benchmark)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Names with their first and last line, inner ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _functions(child, f"{prefix}{child.name}.")
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child.lineno, child.end_lineno or child.lineno
