"""The pages that users read, taken apart: sentences, blocks of code, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
GUIDES: Final = tuple(sorted((ROOT / "docs").glob("*.md")))
PAGES: Final = (README, *GUIDES, *sorted((ROOT / "deploy").glob("*/README.md")))
"""What users and operators read. Decisions are records for programmers."""
NOTES: Final = tuple(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))
"""What is read beside them: prose, with commands for those who change or release triton-lb."""

_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"`+[^`]+`+")
_BEGINS: Final = re.compile(r"^(\s*([-*]|\d+\.) |#+ |\s*$)")
_END: Final = re.compile(r"(?<=[.!?])[)*_\"]*\s+(?=[*_\"(]*(?:[A-Z0-9`\[]|triton-lb))")


@dataclass(frozen=True)
class Block:
    """A fenced block of code: the page that has it, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, without the indentation of a list that holds them."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        lines = [line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True)]
        line = text.count("\n", 0, found.start()) + 1
        yield Block(name_of(page), line, found[2], "".join(lines))


def name_of(page: Path) -> str:
    """Name a page in the names of tests."""
    return str(page.relative_to(ROOT))


def all_blocks(language: str) -> list[Block]:
    """Return the blocks of all pages in a language."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("\n", text)


def commands(block: Block) -> Iterator[str]:
    """Yield the commands of a block of shell, one a line, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*", "", line).strip()
        if command:
            yield command


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page outside of code, tables, comments and HTML."""
    text = re.sub(r"<!--.*?-->", "\n", prose(text), flags=re.DOTALL)
    for paragraph in _paragraphs(text):
        plain = _CODE.sub("CODE", _LINK.sub(r"\1", paragraph))
        yield from filter(None, _END.split(plain))


def cells(text: str) -> Iterator[str]:
    """Yield the sentences in the cells of a page's tables."""
    for line in prose(text).splitlines():
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield from filter(None, _END.split(_CODE.sub("CODE", _LINK.sub(r"\1", cell))))


def _paragraphs(text: str) -> Iterator[str]:
    gathered: list[str] = []
    for line in (*text.splitlines(), ""):
        if _BEGINS.match(line) or line.lstrip().startswith(("|", "<")):
            if gathered:
                yield " ".join(gathered)
            gathered = []
        if not line.lstrip().startswith(("|", "<", "#")):
            gathered.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())
        gathered = [part for part in gathered if part]


def words(sentence: str) -> int:
    """Return how many words a sentence has; a piece of code counts as one."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())
