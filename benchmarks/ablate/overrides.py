"""Has modules of the product come with other constants, in a process that has not imported them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Loader(SourceFileLoader):
    """Compiles a module whose constants have other values."""

    def __init__(self, name: str, path: str, values: Mapping[str, float]) -> None:
        super().__init__(name, path)
        self._values = values

    def get_code(self, fullname: str) -> CodeType:
        """Compile it anew: what is cached has the constants of the product."""
        tree = ast.parse(Path(self.path).read_text())
        left = set(self._values)
        for node in tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id in self._values:
                node.value = ast.copy_location(ast.Constant(self._values[target.id]), target)
                left.remove(target.id)
        if left:
            raise LookupError(f"{fullname} has no constant {left}")
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, values: Mapping[str, Mapping[str, float]]) -> None:
        self._values = values

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the modules that are to be others."""
        if fullname not in self._values:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._values[fullname])
        return spec


def override(constants: Mapping[str, float]) -> None:
    """Have constants, named `module.NAME`, be others from now on."""
    values: dict[str, dict[str, float]] = {}
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        assert module not in sys.modules, module
        values.setdefault(module, {})[constant] = value
    sys.meta_path.insert(0, _Finder(values))
