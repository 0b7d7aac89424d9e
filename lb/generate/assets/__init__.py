"""Files of `deploy/` that belong to stacks: links in the source tree, copies in a wheel."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources


def asset_files(folder: str, ending: str) -> Iterator[tuple[str, str]]:
    """Names and texts of files, in order of their names.

    Args:
        folder: one of those here.
        ending: of the names.
    """
    there = resources.files(__name__) / folder
    for file in sorted(there.iterdir(), key=lambda each: each.name):
        if file.name.endswith(ending):
            yield file.name, file.read_text(encoding="utf-8")
