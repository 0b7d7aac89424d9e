"""No module imports itself by way of others, imports for type checking counted.

Files of a circle can only be understood together.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    """Files by the dotted name under which they are imported."""
    found = {}
    for path in (ROOT / "lb").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules each module imports, within functions and for type checking included."""
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[module] = names & modules.keys() - {module}
    return found


def reachable(module: str, graph: dict[str, set[str]]) -> set[str]:
    """Modules that a module imports, directly or not."""
    found: set[str] = set()
    left = [module]
    while left:
        fresh = graph[left.pop()] - found
        found |= fresh
        left += fresh
    return found


def test_no_module_is_part_of_a_circle() -> None:
    files = modules()
    graph = imports(files)
    circular = [
        str(files[module].relative_to(ROOT))
        for module in sorted(graph)
        if module in reachable(module, graph)
    ]
    assert circular == []
