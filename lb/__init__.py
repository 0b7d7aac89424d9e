"""Load balancer in front of Triton Inference Servers.

Some installations bring compiled modules beside the sources that they were made from
(docs/decisions/0021-compiling.md). With TRITON_LB_PURE=1 in the environment the sources run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader


class _Sources:
    """Finds modules of this package by their source only."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder`."""
        if not name.startswith("lb."):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None


if os.environ.get("TRITON_LB_PURE") == "1":
    sys.meta_path.insert(0, _Sources)
