"""Values from the environment and from files stay out of messages: they may be secrets, above all
where they stand in the wrong place. A message shows the reference instead, as the file has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from lb.settings.problems import Path, Substituted, show

_SHORT: Final = 3
"""A value with fewer characters is no secret, and may be a part of any word of a message."""


def redact(message: str, root: Mapping[str, object], path: Path) -> str:
    """Replace what was substituted at a path by its references.

    Args:
        message: about the value at the path.
        root: the tree of the configuration.
        path: may go beyond what is in the tree.
    """
    shown: dict[str, str] = {}
    for value in _substituted(_value_at(root, path)):
        shown[show(str(value))] = shown[repr(str(value))] = show(value)
        if len(value) >= _SHORT:
            shown[str(value)] = shown[value.reference] = value.reference
    if not shown:
        return message
    # In one pass, since a reference may hold its own value: `${LEVEL:-info}`.
    texts = sorted(shown, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, texts)), lambda match: shown[match[0]], message)


def _value_at(root: Mapping[str, object], path: Path) -> object:
    found: object = root
    for part in path:
        if isinstance(found, dict):
            found = found.get(part, found)
        elif isinstance(found, list) and isinstance(part, int) and part < len(found):
            found = found[part]
    return found


def _substituted(value: object) -> Iterator[Substituted]:
    if isinstance(value, Substituted):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _substituted(each)
    elif isinstance(value, list):
        for each in value:
            yield from _substituted(each)
