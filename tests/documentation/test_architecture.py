"""The map for programmers names files, classes and functions that are there, in short sentences."""

from __future__ import annotations

import re
from typing import Final

from tests.documentation.pages import ROOT, prose, sentences, words

PAGE: Final = (ROOT / "ARCHITECTURE.md").read_text()
CODE: Final = set(re.findall(r"`([^`\n]+)`", prose(PAGE)))
"""What stands in the page as code."""
SOURCES: Final = "\n".join(
    path.read_text() for kind in ("py", "proto") for path in ROOT.glob(f"lb/**/*.{kind}")
)
LONGEST: Final = 25


def test_files_exist() -> None:
    there = "\n".join(
        f"/{path.relative_to(ROOT)}"
        for folder in ("lb", "tests", "benchmarks", "docs")
        for path in ROOT.glob(f"{folder}/**/*")
    )
    named = {each.rstrip("/") for each in CODE if each.endswith((".py", ".md", "/"))}
    assert named
    patterns = {each: re.escape(each).replace(r"\*", r"\w*") for each in named}
    assert [
        each for each, like in patterns.items() if not re.search(rf"/{like}$", there, re.M)
    ] == []


def test_classes_and_what_they_have_exist() -> None:
    defined = set(re.findall(r"^\s*(?:class|(?:async )?def|rpc) (\w+)", SOURCES, re.MULTILINE))
    kept = set(re.findall(r"^\s+(?:self\.)?(\w+)(?:: [^=\n]+)?(?: =|$)", SOURCES, re.MULTILINE))
    named = {each for each in CODE if re.fullmatch(r"[A-Z]\w*[a-z]\w*(?:\.\w+)?", each)}
    assert named
    missing = {
        each
        for each in named
        if each.partition(".")[0] not in defined or each.rpartition(".")[2] not in defined | kept
    }
    assert missing == set()


def test_no_sentence_has_more_than_25_words() -> None:
    assert [each for each in sentences(PAGE) if words(each) > LONGEST] == []
