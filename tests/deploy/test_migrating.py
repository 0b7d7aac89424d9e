"""The files in docs/migrating.md are ones that triton-lb takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lb.cli.main import build_parser
from lb.settings.reading import read_settings

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
OURS = [
    block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "\nbackends:\n" in block
]
COMMANDS = re.findall(r"^(triton-lb [a-z].*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("block", OURS)
def test_a_configuration_is_taken(block: str) -> None:
    assert len(read_settings(block, {}, str).backends) in (2, 7)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    _, *arguments = shlex.split(command)
    assert build_parser().parse_args(arguments).handler is not None


def test_there_are_some() -> None:
    assert (len(OURS), len(COMMANDS)) == (3, 2)
