"""What users read is written in short sentences, and long pages have contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.pages import (
    GUIDES,
    NOTES,
    PAGES,
    cells,
    name_of,
    prose,
    sentences,
    words,
)

LONGEST = 30


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["Word"] * 31)
    page = f"# Title\n\nShort one. {long}.\n\n- {long}\n\n```sh\n{long}\n```\n\n| {long} |\n"
    assert [words(sentence) for sentence in sentences(page)] == [2, 31, 31]


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=name_of)
def test_no_sentence_has_more_than_thirty_words(page: Path) -> None:
    text = page.read_text()
    found = [each for each in (*sentences(text), *cells(text)) if words(each) > LONGEST]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_page_of_more_than_150_lines_lists_its_sections(page: Path) -> None:
    text = page.read_text()
    if len(text.splitlines()) > 150:
        headings = re.findall(r"^## (.*)$", prose(text), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert anchors <= set(re.findall(r"\]\(#([^)]+)\)", text.partition("\n## ")[0]))
