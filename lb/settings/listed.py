"""Backends that are given while we run: files with lists of them, and single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from lb.domain.backend import Address
from lb.settings.backends import BackendSettings
from lb.settings.problems import Finding, Path, Problem, SettingsError, format_path
from lb.settings.relations import check_backends
from lb.settings.section import LENIENT
from lb.settings.tree import Tree, parse_tree
from lb.settings.wording import describe, keys_meant

_KEY: Final = "backends"
_JSON_STARTS: Final = ("[", "{")


class BackendList(BaseModel):
    """What a file with backends holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backends: tuple[BackendSettings, ...]


def read_backends(
    text: str, substitute: Callable[[str], str], ours: Mapping[str, Address]
) -> tuple[BackendSettings, ...]:
    """Read a list of backends, or a mapping with the key `backends`, in YAML or JSON.

    Args:
        text: of the file.
        substitute: is applied to every string and raises ValueError with a message.
        ours: see `own_addresses`.

    Raises:
        SettingsError: lists every problem.
    """
    if text.lstrip().startswith(_JSON_STARTS):
        text = text.replace("\t", " ")  # between values; YAML knows no tabs there
    tree = parse_tree(text, substitute, _KEY)
    if tree.problems and not tree.root:
        raise SettingsError(tree.problems)
    return _build(tree, ours)


def read_backend(entry: Mapping[str, object], ours: Mapping[str, Address]) -> BackendSettings:
    """Read one backend.

    Raises:
        SettingsError: lists every problem, with paths that begin at the entry.
    """
    tree = Tree()
    tree.root = {_KEY: [entry]}
    try:
        return _build(tree, ours)[0]
    except SettingsError as error:
        prefix = f"{_KEY}[0]"
        raise SettingsError(
            Problem(each.path.removeprefix(prefix).removeprefix("."), each.message)
            for each in error.problems
        ) from None


def _readable(root: Mapping[str, object]) -> tuple[BackendSettings, ...]:
    try:
        return BackendList.model_validate(root, context=LENIENT).backends
    except ValidationError:
        return ()


def _standby(backends: Sequence[BackendSettings]) -> Iterator[Finding]:
    """Commands come from the configuration alone: whoever may name a backend may not name those."""
    for index, backend in enumerate(backends):
        if backend.standby is not None:
            path = ("backends", index, "standby")
            yield path, "is only for backends in the configuration file"


def _build(tree: Tree, ours: Mapping[str, Address]) -> tuple[BackendSettings, ...]:
    found: tuple[BackendSettings, ...] = ()
    findings: list[tuple[Path, str]] = []
    meant: set[Path] = set()
    try:
        found = BackendList.model_validate(tree.root).backends
    except ValidationError as error:
        findings, meant = describe(error), keys_meant(error)
        found = _readable(tree.root)
    problems = {problem.path: problem for problem in reversed(tree.problems)}
    for path, message in (*findings, *check_backends(found, ours), *_standby(found)):
        if path not in meant:  # the line about the unknown key tells
            problems.setdefault(format_path(path), tree.problem(path, message))
    if problems:
        raise SettingsError(sorted(problems.values(), key=lambda problem: problem.line))
    return found
