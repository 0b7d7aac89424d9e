"""Generated files against what is on disk: compare, show, write."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lb.generate.devices import GenerateError
from lb.generate.document import COMMAND, HEADER

_MARK: Final = HEADER.encode()
_LONGEST_START: Final = 256
_COMMENT: Final = f"# {COMMAND}"


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """One file of a stack."""

    path: str
    """Relative to the folder of the stack."""
    text: str
    is_executable: bool = False

    @property
    def mode(self) -> int:
        """Containers run as other users: everybody may read."""
        return 0o755 if self.is_executable else 0o644


@dataclass(frozen=True, slots=True)
class FileComparison:
    """How the files of a stack differ from those in a folder."""

    new: tuple[GeneratedFile, ...]
    changed: tuple[tuple[GeneratedFile, str], ...]
    """With what is there now."""
    left_over: tuple[str, ...]
    """Paths of files that were generated once and no longer belong to the stack."""

    @property
    def is_same(self) -> bool:
        return not (self.new or self.changed or self.left_over)


def compare(files: Sequence[GeneratedFile], folder: Path) -> FileComparison:
    """Look at what is there.

    Raises:
        GenerateError: something there cannot be read.
    """
    new, changed = [], []
    for file in files:
        try:
            there = (folder / file.path).read_bytes()
        except FileNotFoundError:
            new.append(file)
            continue
        except OSError as error:
            raise GenerateError(f"{folder / file.path}: {error.strerror}") from error
        if there != file.text.encode():
            changed.append((file, there.decode(errors="replace")))
    known = {file.path for file in files}
    left_over = (path for path in _ours(folder) if path not in known)
    return FileComparison(tuple(new), tuple(changed), tuple(left_over))


def _ours(folder: Path) -> Iterable[str]:
    """Files that carry our first line, at any depth."""
    for path in sorted(folder.rglob("*")):
        # Models can lie here too, and be large: only the beginning is read.
        if path.is_file() and not path.is_symlink():
            try:
                with path.open("rb") as file:
                    start = file.read(_LONGEST_START)
            except OSError:
                continue
            if _MARK in start:
                yield str(path.relative_to(folder))


def command_of(path: Path) -> str:
    """The command line that a file was made by; empty where there is no such file, or none told.

    Raises:
        GenerateError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise GenerateError(f"{path}: {error.strerror}") from error
    return next((each.removeprefix(_COMMENT) for each in lines if each.startswith(_COMMENT)), "")


def difference(comparison: FileComparison, folder: Path) -> str:
    """The difference as `diff -u` writes it, from what is there to what would be."""
    parts: list[str] = []
    for file, there in (*((file, "") for file in comparison.new), *comparison.changed):
        name = str(folder / file.path)
        before = name if there else "/dev/null"
        parts += difflib.unified_diff(
            there.splitlines(keepends=True), file.text.splitlines(keepends=True), before, name
        )
    parts += [f"no longer part of the stack: {folder / path}\n" for path in comparison.left_over]
    return "".join(parts)


def write(files: Iterable[GeneratedFile], folder: Path) -> None:
    """Write files, each at once: who reads one meanwhile gets the old or the new text.

    Raises:
        GenerateError: one cannot be written.
    """
    for file in files:
        path = folder / file.path
        temporary = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(file.text, encoding="utf-8")
            temporary.chmod(file.mode)
            os.replace(temporary, path)
        except OSError as error:
            raise GenerateError(f"{path}: {error.strerror}") from error
