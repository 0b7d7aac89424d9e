"""What the models look like from outside: the keys and descriptions of sections."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

from lb.settings.model import Settings
from lb.settings.problems import Path
from lb.settings.section import Section, key_of


def section_of(annotation: object) -> type[Section] | None:
    """Return the section that a field holds: directly, optionally, in a list or in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for part in get_args(annotation):
        section = section_of(part)
        if section is not None:
            return section
    return None


def keys_at(path: Path) -> tuple[str, ...]:
    """Return the keys that the section at a path may have; none where there is no section."""
    section: type[Section] | None = Settings
    for part in path:
        if section is None:
            return ()
        field = section.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            section = section_of(field.annotation)
    return tuple(map(key_of, section.model_fields)) if section is not None else ()


def meanings(section: type[Section]) -> dict[str, str]:
    """Return the description of each field, inherited ones included; empty if there is none.

    They are read from the source, for documentation only: pydantic could keep them for every model,
    at a tenth of the time that the process takes to start.

    Raises:
        OSError: the source is not there.
    """
    found = dict.fromkeys(section.model_fields, "")
    for base in reversed(section.__mro__):
        if issubclass(base, Section) and base is not Section:
            found |= _of_class(base)
    return found


def _of_class(section: type[Section]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    return dict(_texts(tree)) if isinstance(tree, ast.ClassDef) else {}


def _texts(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(tree.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(after.value.value)
