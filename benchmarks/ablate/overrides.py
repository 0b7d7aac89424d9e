"""Has the scheduler come with other constants, or other code, in a process that has not imported
it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from lb.balancing import tuning


class _Loader(SourceFileLoader):
    """Compiles a module some of whose code is other code."""

    def __init__(self, name: str, path: str, texts: Mapping[str, str]) -> None:
        super().__init__(name, path)
        self._texts = texts

    def get_code(self, fullname: str) -> CodeType:
        """Compile it anew: what is cached has the code of the product."""
        source = Path(self.path).read_text()
        for before, after in self._texts.items():
            if before not in source:
                raise LookupError(f"{fullname} has no text {before}")
            source = source.replace(before, after)
        return compile(ast.parse(source), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the modules that are to be others."""
        texts = self._texts.get(fullname, {})
        if not texts:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, texts)
        return spec


def override(values: Mapping[str, float], texts: Mapping[str, Mapping[str, str]]) -> None:
    """Have the scheduler be another one from now on. Nothing of it may be imported yet.

    Args:
        values: the values of some constants of `Tuning`.
        texts: what stands instead of some code, by module.
    """
    loaded = {name for name in sys.modules if name.startswith("lb.balancing.")}
    assert loaded <= {"lb.balancing.tuning"}, loaded
    tuning.TUNING = replace(tuning.TUNING, **values)  # type: ignore[arg-type, misc]
    sys.meta_path.insert(0, _Finder(texts))
