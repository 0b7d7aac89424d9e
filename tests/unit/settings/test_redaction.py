"""No message shows a value that came from the environment or from a file."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path as File
from typing import Any

import pytest

from lb.settings.problems import Path, SettingsError, Substituted
from lb.settings.reading import build_settings, read_settings
from lb.settings.redaction import redact
from lb.settings.tree import Tree, parse_tree

FULL = parse_tree(
    (File(__file__).parents[3] / "config" / "full.yaml").read_text(), lambda text: text
).root
SECRETS = [
    "hunter2",
    "hunter2-" * 40,
    'hunter2 it\'s\n"quoted"',
    "hunter2:99999",
    "hunter2:0",
    "[hunter2]:80",
    "1:hunter2:80",
    "127.0.0.1:hunter2",
    "http://hunter2:80/",
    "unix:",
    "hunter2/24",
    "10.0.0.1/hunter2",
    "hunter2s",
    "-77.75",
    "777777777777777777777777",
    "777777777777h",
]


def leaves(value: object, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))
    else:
        yield path


def put(root: Any, path: Path, value: object) -> None:
    for part in path[:-1]:
        root = root[part]
    root[path[-1]] = value


def replaced(node: Any, path: Path, value: object) -> Any:
    """A tree with another value at a path. It shares all other branches, which nobody changes."""
    if not path:
        return value
    fresh = node.copy()
    fresh[path[0]] = replaced(node[path[0]], path[1:], value)
    return fresh


def problems(root: dict[str, object]) -> list[str]:
    tree = Tree()
    tree.root = root
    try:
        build_settings(tree)
    except SettingsError as error:
        return [str(each) for each in error.problems]
    return []


def traces(secret: str) -> list[str]:
    return ["hunter2"] if "hunter2" in secret else [secret] if len(secret) > 5 else []


@pytest.mark.parametrize("secret", SECRETS)
def test_no_message_shows_it_wherever_it_stands(secret: str) -> None:
    everywhere = deepcopy(FULL)
    found = []
    for path in leaves(FULL):
        put(everywhere, path, Substituted.of(secret, "${SECRET}"))
        found += problems(replaced(FULL, path, Substituted.of(secret, "${SECRET}")))
    found += problems(everywhere)
    assert len(found) > 20
    for trace in traces(secret):
        assert [each for each in found if trace in each] == []


def test_every_key_can_come_from_the_environment() -> None:
    root = deepcopy(FULL)
    for path in leaves(FULL):
        node: Any = FULL
        for part in path:
            node = node[part]
        if isinstance(node, str):
            put(root, path, Substituted.of(node, "${NAME}"))
    assert problems(root) == problems(deepcopy(FULL)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weight: ${SECRET}", "backends[0].weight: expected a number, got '${SECRET}'"),
        ("grpc: 'a:${SECRET}'", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'a:${SECRET}'"),
        ("weight: ${file:/token}", "expected a number, got '${file:/token}'"),
        ("weight: ${NONE:-x}", "expected a number, got '${NONE:-x}'"),
        ("weight: $${SECRET}", "expected a number, got '${SECRET}'"),
        ("weight: x", "expected a number, got 'x'"),
        ("metrics: '${OWN}'", "${OWN} is our own listener listen.http"),
    ],
)
def test_the_reference_is_shown_instead(line: str, message: str) -> None:
    text = f"listen: {{http: '127.0.0.1:80'}}\nbackends:\n- http: a:1\n  {line}\n"
    env = {"SECRET": "hunter2hunter2", "OWN": "127.0.0.1:80"}
    with pytest.raises(SettingsError, match="backends") as raised:
        read_settings(text, env, lambda _path: "hunter2hunter2\n")
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_the_platforms_variables_are_named() -> None:
    text = "listen: {http: 'a:1'}\nbackends: [{http: 'b:1'}]\nfronts: {sagemaker: {enabled: true}}"
    env = {"SAGEMAKER_SAFE_PORT_RANGE": "hunter2", "SAGEMAKER_BIND_TO_PORT": "hunter2"}
    with pytest.raises(SettingsError, match="SAGEMAKER_BIND_TO_PORT") as raised:
        read_settings(text, env, lambda path: path)
    assert "expected LOW-HIGH, got '${SAGEMAKER_SAFE_PORT_RANGE}'" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_what_stands_in_the_file_is_shown() -> None:
    assert redact("got 'x'", {"a": ["x"]}, ("a", 0)) == "got 'x'"
