"""Dependencies point down, and the pure packages do no IO (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "lb"
LAYERS = (  # low to high; packages of one line never import each other
    ("domain",),
    ("settings",),
    ("wire", "sharing"),
    ("access", "balancing", "health", "kserve", "placing", "telemetry"),
    ("net", "payloads"),
    ("comparison",),
    ("proxy", "discovery", "probes"),
    ("control",),
    ("admin",),
    ("runtime", "generate", "simulator"),
    ("testing",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = {"access", "domain", "settings", "balancing", "health", "kserve", "placing", "wire"}
IMPURE = {"asyncio", "socket", "ssl", "time", "threading", "os", "logging", "random", "datetime"}
PURE_EXCEPTIONS = {
    # Types of arguments: randomness comes in from outside.
    "random.Random",
}
SIMULATOR_MAY = {"kserve", "simulator"}
"""The simulator stands for another server: it knows the messages and nothing of ours."""


def imported(path: Path) -> list[str]:
    """Names that a module imports, dotted; relative imports are refused by ruff."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def problems(path: Path) -> list[str]:
    package = path.relative_to(ROOT).parts[0]
    if package not in RANK:
        return []
    found = []
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "lb" and rest:
            other = rest.partition(".")[0]
            if other == package:
                continue
            if other not in RANK or RANK[other] >= RANK[package] or package == "wire":
                found.append(f"{path.name}: {package} must not import {name}")
            if package == "simulator" and other not in SIMULATOR_MAY:
                found.append(f"{path.name}: the simulator must not import {name}")
        elif package in PURE and top in IMPURE and name not in PURE_EXCEPTIONS:
            found.append(f"{path.name}: {package} is pure and must not import {name}")
    return found


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_lies_below(path: Path) -> None:
    assert problems(path) == []


def test_every_package_has_a_layer() -> None:
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(RANK)


def test_proxy_never_imports_control() -> None:
    for path in (ROOT / "proxy").rglob("*.py"):
        assert not [name for name in imported(path) if name.startswith("lb.control")]
