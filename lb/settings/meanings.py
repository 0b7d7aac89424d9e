"""What the settings of a section mean: the texts behind the fields of its model.

Read from the source, and only by who writes the documentation: pydantic could do it too, for every
model at every start of the process, and takes a tenth of the start for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise

from lb.settings.section import Section


def meanings(section: type[Section]) -> dict[str, str]:
    """The texts by name of the field, those that it inherits among them; empty where there is
    none.

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
