"""A benchmark that nobody has run for weeks still finds what it imports."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.fakes.process import REPOSITORY

FILES = sorted(
    path.relative_to(REPOSITORY)
    for folder in ("benchmarks", "tools")
    for path in (REPOSITORY / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_names_from_this_project_exist(path: Path) -> None:
    """Only what comes from the product and its tests: plots need packages of their own."""
    tree = ast.parse((REPOSITORY / path).read_text())
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("lb", "tests")
    ]
    for node in ours:
        module = importlib.import_module(node.module or "")
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")
