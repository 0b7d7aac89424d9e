"""What the pages show is right: YAML is taken, commands and targets exist, Python compiles."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lb.cli.main import build_parser
from lb.settings.reading import read_settings
from tests.documentation.pages import (
    NOTES,
    PAGES,
    ROOT,
    Block,
    all_blocks,
    blocks,
    commands,
    name_of,
)

THEIRS = ("# envoy.yaml", "images:", "rules:")
"""How the YAML of Envoy, kustomize and prometheus-adapter begins."""
OURS = [block for block in all_blocks("yaml") if not block.text.startswith(THEIRS)]
SHELL = [(block, command) for block in all_blocks("sh") for command in commands(block)]
LEAST: dict[str, object] = {
    "listen": {"http": "127.0.0.1:8000"},
    "backends": [{"http": "127.0.0.1:18000"}],
}
"""What a snippet with some sections needs around it."""
TOKENS = [{"name": "team-a", "token": "0123456789abcdef"}]
LANGUAGES = {"json", "nginx", "python", "sh", "text", "yaml"}
OTHERS = {".", "curl", "docker", "export", "kill", "openssl", "pip", "printf", "sha256sum"}
OTHERS |= {"cp", "kubectl", "nvidia-smi", "python3", "systemctl"}
"""First words of commands of other programs."""
ENVIRONMENT = {"TEAM_B_TOKEN": "0123456789abcdef"}


def parts(command: str) -> Iterator[list[str]]:
    """Yield the words of each program in a line of shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def check(words: list[str]) -> None:
    """Check the command of one program."""
    program, *arguments = words
    if program == "triton-lb":
        assert build_parser().parse_args(arguments).handler is not None
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif program.endswith("python") or (program == "python3" and "venv" not in arguments):
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None
    else:
        assert program in OTHERS


@pytest.mark.parametrize("block", OURS, ids=str)
def test_yaml_is_a_configuration_or_sections_of_one(block: Block) -> None:
    text = block.text
    tree = yaml.safe_load(text)
    if not LEAST.keys() <= tree.keys():
        tree["access"] = {"tokens": TOKENS, **tree.get("access", {})}
        text = json.dumps({**LEAST, **tree})
    assert read_settings(text, ENVIRONMENT, lambda name: "text").model_fields_set


@pytest.mark.parametrize(("block", "command"), SHELL, ids=[f"{b}:{c}" for b, c in SHELL])
def test_commands_are_ones_that_exist(block: Block, command: str) -> None:
    for words in parts(command):
        if words and words[0] == "sudo":
            words = words[1:]
        if words:
            check(words)


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=name_of)
def test_commands_in_sentences_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for command in re.findall(r"`((?:triton-lb|make) [^`]+)`", text):
        words = [word for word in shlex.split(command) if word != "..."]
        if words[0] == "triton-lb" and len(words) == 2:  # its name alone, without what it needs
            with pytest.raises(SystemExit, match="0"):
                build_parser().parse_args([words[1], "--help"])
        else:
            check(words)


@pytest.mark.parametrize("block", all_blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_that_is_checked(page: Path) -> None:
    found = {block.language for block in blocks(page)}
    assert found <= LANGUAGES
