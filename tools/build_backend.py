"""The build backend: setuptools, and the compiler where compiled modules are asked for.

    TRITON_LB_COMPILE=1 python -m build --wheel

mypyc checks the types of the modules that it compiles. It needs the packages that they import, and
the group `compile` of pyproject.toml. A pure wheel needs neither.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Packages that the build needs, as PEP 517 asks for them."""
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if os.environ.get("TRITON_LB_COMPILE") == "1":
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        needed += project["project"]["dependencies"]
        needed += project["dependency-groups"]["compile"]
    return needed
