"""Files that the pages name exist, and so do the pages that the index and the site name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.documentation.pages import GUIDES, PAGES, ROOT, name_of

DECISIONS = ROOT / "docs" / "decisions"
PATH = re.compile(r"`((?:lb|tests|deploy|benchmarks|tools|config|docs)/[\w./*-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    tests = {f"tests/**/{name}" for name in re.findall(r"`(test_\w+\.py)`", text)}
    for path in {*PATH.findall(text), *tests}:
        assert any(ROOT.glob(path.rstrip("/"))), path


def test_every_guide_is_in_the_index_and_in_the_site() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    site = yaml.safe_load((ROOT / "tools" / "mkdocs.yml").read_text())
    for page in GUIDES:
        assert page.name == "README.md" or f"({page.name}" in index
        assert f"docs/{page.name}" in str(site["nav"])


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (DECISIONS / "README.md").read_text())
    assert listed == sorted(path.name for path in DECISIONS.glob("0*.md"))
