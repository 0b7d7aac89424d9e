"""Which scenes a constant can matter in: those that execute a function which mentions it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

TOP: Final = Path(__file__).parents[2]
BALANCING: Final = TOP / "lb" / "balancing"


def mentioned(play: Callable[[], object]) -> set[str]:
    """The names that functions of `lb.balancing` mention which are executed meanwhile."""
    codes: set[CodeType] = set()

    def on_call(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(on_call)
    try:
        play()
    finally:
        sys.setprofile(None)
    place = str(BALANCING)
    return {name for code in codes if code.co_filename.startswith(place) for name in code.co_names}


@cache
def _definitions() -> tuple[tuple[tuple[str, frozenset[str]], ...], frozenset[str]]:
    """The constants of all modules with the names that each is made of, and the names that are part
    of how a module is made, such as the default of a parameter."""
    made_of: list[tuple[str, frozenset[str]]] = []
    parts: set[str] = set()
    for path in BALANCING.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node.value is not None:
                    made_of.append((node.target.id, frozenset(_names(node.value))))
            else:
                for each in _evaluated(node):
                    parts |= _names(each)
    return tuple(made_of), frozenset(parts)


def dependents(constants: Iterable[str]) -> set[str] | None:
    """The names that stand for constants, those included; None where they are part of how a module
    is made."""
    made_of, parts = _definitions()
    found = set(constants)
    while True:
        more = {name for name, names in made_of if names & found} - found
        if not more:
            return None if found & parts else found
        found |= more


def _evaluated(node: ast.stmt) -> Iterable[ast.AST]:
    """What is evaluated when a statement of a module is, beside the values of constants."""
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from each.args.defaults
            yield from (default for default in each.args.kw_defaults if default is not None)


def _names(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def reaching(
    constants: Iterable[str], mentions: Mapping[str, set[str]], scenes: Iterable[str]
) -> list[str]:
    """The scenes that may be others with other values of constants."""
    names = dependents(constants)
    return [scene for scene in scenes if names is None or names & mentions.get(scene, names)]
