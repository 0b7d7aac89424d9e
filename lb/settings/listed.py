"""Backends that are given while we run: files with lists of them, and single ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from lb.domain.backend import Address
from lb.settings.backends import BackendSettings
from lb.settings.problems import MAX_PROBLEMS, Finding, Path, Problem, SettingsError
from lb.settings.relations import check_backends
from lb.settings.section import LENIENT
from lb.settings.tree import Tree, parse_tree
from lb.settings.wording import describe, keys_meant

_KEY: Final = "backends"
_JSON_STARTS: Final = ("[", "{")


class _Document(BaseModel):
    """What a file with backends holds beside the entries themselves, which are read one by one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backends: tuple[object, ...]


def read_backends(text: str, ours: Mapping[str, Address], most: int) -> tuple[BackendSettings, ...]:
    """Read a list of backends, or a mapping with the key `backends`, in YAML or JSON.

    Args:
        text: of the file.
        ours: see `own_addresses`.
        most: entries that are read.

    Raises:
        SettingsError: lists every problem, or enough of them.
    """
    if text.lstrip().startswith(_JSON_STARTS):
        text = text.replace("\t", " ")  # between values; YAML knows no tabs there
    tree = parse_tree(text, _plain, _KEY)
    if tree.problems and not tree.root:
        raise SettingsError(tree.problems)
    return _build(tree, ours, most)


def read_backend(entry: Mapping[str, object], ours: Mapping[str, Address]) -> BackendSettings:
    """Read one backend.

    Raises:
        SettingsError: lists every problem, with paths that begin at the entry.
    """
    tree = Tree()
    tree.root = {_KEY: [entry]}
    try:
        return _build(tree, ours, 1)[0]
    except SettingsError as error:
        prefix = f"{_KEY}[0]"
        raise SettingsError(
            Problem(each.path.removeprefix(prefix).removeprefix("."), each.message)
            for each in error.problems
        ) from None


def _plain(text: str) -> str:
    """Take a string as it is. Whoever may name a backend could else have any file and any variable
    of the environment sent to it, as a header."""
    if "${" in text:
        raise ValueError("${NAME} and ${file:PATH} are only for the configuration file")
    return text


def _standby(backends: Sequence[BackendSettings]) -> Iterator[Finding]:
    """Commands come from the configuration alone: whoever may name a backend may not name those."""
    for index, backend in enumerate(backends):
        if backend.standby is not None:
            path = ("backends", index, "standby")
            yield path, "is only for backends in the configuration file"


def _build(tree: Tree, ours: Mapping[str, Address], most: int) -> tuple[BackendSettings, ...]:
    reader = _Reader()
    reader.read(tree.root, most)
    rules = chain(check_backends(reader.found, ours), _standby(reader.found))
    findings = chain(reader.findings, rules)
    # Of a known key under another name the line about the unknown key tells.
    problems = tree.problems_with(each for each in findings if each[0] not in reader.meant)
    if problems:
        raise SettingsError(problems)
    return tuple(reader.found)


class _Reader:
    """Reads entries until there are enough problems."""

    def __init__(self) -> None:
        self.found: list[BackendSettings] = []
        """The entries, each without what cannot be read; empty if there is one that has nothing
        else."""
        self.findings: list[Finding] = []
        self.meant: set[Path] = set()
        """Known keys that stand there under an unknown name."""

    def read(self, root: Mapping[str, object], most: int) -> None:
        """Read no more than so many entries."""
        try:
            _Document.model_validate(root)
        except ValidationError as error:
            self._note(error, ())
        entries = root.get(_KEY)
        if not isinstance(entries, list):
            return
        for index, entry in enumerate(entries[:most]):
            try:
                self.found.append(BackendSettings.model_validate(entry))
            except ValidationError as error:
                self._note(error, (_KEY, index))
                if len(self.findings) > MAX_PROBLEMS:
                    break
                self._keep_readable(entry)
        if len(self.found) < min(len(entries), most):
            self.found.clear()  # rules between entries go by their numbers

    def _note(self, error: ValidationError, at: Path) -> None:
        self.findings += describe(error, at)
        self.meant |= keys_meant(error, at)

    def _keep_readable(self, entry: object) -> None:
        try:
            self.found.append(BackendSettings.model_validate(entry, context=LENIENT))
        except ValidationError:
            return  # nothing of it can be read, and the findings say so
