"""Has modules of the product come with other constants, or other code, in a process that has not
imported them."""

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

    def __init__(
        self, name: str, path: str, values: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        super().__init__(name, path)
        self._values = values
        self._texts = texts

    def get_code(self, fullname: str) -> CodeType:
        """Compile it anew: what is cached has the constants of the product."""
        source = Path(self.path).read_text()
        for before, after in self._texts.items():
            if before not in source:
                raise LookupError(f"{fullname} has no text {before}")
            source = source.replace(before, after)
        tree = ast.parse(source)
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
    def __init__(
        self, values: Mapping[str, Mapping[str, float]], texts: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._values = values
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the modules that are to be others."""
        values, texts = self._values.get(fullname, {}), self._texts.get(fullname, {})
        if not (values or texts):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, values, texts)
        return spec


def override(constants: Mapping[str, float], texts: Mapping[str, Mapping[str, str]]) -> None:
    """Have modules be others from now on.

    Args:
        constants: the values of some, by `module.NAME`.
        texts: what stands instead of some code, by module.
    """
    values: dict[str, dict[str, float]] = {}
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        values.setdefault(module, {})[constant] = value
    assert not (values.keys() | texts.keys()) & sys.modules.keys()
    sys.meta_path.insert(0, _Finder(values, texts))
