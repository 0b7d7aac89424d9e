"""docs/command-line.md names every command, every exit code and every variable."""

from __future__ import annotations

from pathlib import Path

from lb.cli.admin_client import ADDRESS_VARIABLE, TOKEN_VARIABLE
from tests.unit.cli.test_help import NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()


def test_the_page_names_what_there_is() -> None:
    for word in (*(name for name in NAMES if name != "version"), ADDRESS_VARIABLE, TOKEN_VARIABLE):
        assert f"`{word}`" in PAGE
    for code in (0, 1, 2, 130):
        assert f"| {code} |" in PAGE
