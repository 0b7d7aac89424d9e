"""What is wrong with a configuration: one problem, and the error that carries them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lb.domain.errors import LoadBalancerError

MAX_PROBLEMS: Final = 100
"""Problems of one text that are looked for. People mend a few at a time, and a broken text may have
hundreds of thousands."""

Path = tuple[str | int, ...]
"""Where a value stands: keys of mappings and indexes of lists, from the top."""
Finding = tuple[Path, str]
"""A rule that is broken: where, and the message."""


class Substituted(str):
    """Text in which references were replaced by values of the environment or of files."""

    reference: str
    """The text with its references, as it stands in the file."""

    @classmethod
    def of(cls, text: str, reference: str) -> Substituted:
        """Mark a text that came from a reference."""
        made = cls(text)
        made.reference = reference
        return made


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that an operator has to change."""

    path: str
    """`backends[2].grpc`; empty for the file as a whole."""
    message: str
    line: int = 0
    """Line of the file, from 1; 0 where there is none."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


MORE_PROBLEMS: Final = Problem("", "there may be more problems")
"""The last of the problems where some were not looked for."""


class SettingsError(LoadBalancerError):
    """A configuration that cannot be used; its text is one line per problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def format_path(path: Path) -> str:
    """Write a path as operators read it: `backends[2].grpc`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(text: str) -> str:
    """How a text reads in messages, such as the path of a file: what came from the environment or
    from a file is shown as its reference."""
    return text.reference if isinstance(text, Substituted) else text


def show(value: object) -> str:
    """Write a value for a message, as it would stand in the file and at most 60 characters.
    What came from the environment or from a file is shown as its reference."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(shown(value) if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
