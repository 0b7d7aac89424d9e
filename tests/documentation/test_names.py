"""Settings, metrics and paths of the admin API that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lb.admin.operations import LIVE_OPERATIONS, OPENAPI, OPERATIONS
from lb.settings.json_schema import json_schema
from tests.documentation.pages import PAGES, ROOT, name_of

SCHEMA = json_schema()
SETTING = re.compile(r"`([a-z_]+(?:\[\])?(?:\.(?:[a-z_]+|[A-Z]+)(?:\[\])?)+)(?::[^`]*)?`")
"""Such as `backends[].tls`, `models.NAME.retry: never`."""


def keys_of(node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schemas of a section's settings by name, of a list's entries as well.

    The schema of values under names of the user's choice is that of `*`.
    """
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    found = dict(node.get("properties", {}))
    if isinstance(node.get("additionalProperties"), dict):
        found["*"] = node["additionalProperties"]
    for part in node.get("anyOf", ()):
        found |= keys_of(part)
    if isinstance(node.get("items"), dict):
        found |= keys_of(node["items"])
    return found


def is_setting(path: str) -> bool:
    """Whether there is a setting of this path, such as `backends.tls`."""
    node = SCHEMA
    for name in path.split("."):
        keys = keys_of(node)
        if name not in keys and "*" not in keys:
            return False
        node = keys.get(name) or keys["*"]
    return True


def test_a_setting_is_found_in_sections_lists_and_by_name() -> None:
    assert is_setting("backends.tls.ca")
    assert is_setting("models.NAME.retry")
    assert not is_setting("models.NAME.rerty")
    assert not is_setting("retry.floor")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_exist(page: Path) -> None:
    paths = [each.replace("[]", "") for each in SETTING.findall(page.read_text())]
    ours = [each for each in paths if each.partition(".")[0] in keys_of(SCHEMA)]
    assert [each for each in ours if not is_setting(each)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_exist(page: Path) -> None:
    there = (ROOT / "docs" / "metrics.md").read_text()
    for name in set(re.findall(r"\btriton_lb_\w+", page.read_text())):
        assert f"`{name.removesuffix('_bucket').removesuffix('_count')}" in there


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_admin_api_exist(page: Path) -> None:
    there = {each.path for each in (*OPERATIONS, *LIVE_OPERATIONS)} | {OPENAPI}
    named = re.findall(r"/api/v1/[\w./-]*\w", page.read_text())
    assert {re.sub(r"(?<=/backends/)[^/]+", "{name}", each) for each in named} <= there
