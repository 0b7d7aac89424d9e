"""Text to settings, or to a list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import ValidationError

from lb.settings.fronts import apply_environment
from lb.settings.model import Settings
from lb.settings.problems import Path, SettingsError
from lb.settings.relations import check_relations, readable
from lb.settings.substitution import Substitution
from lb.settings.tree import Tree, parse_tree
from lb.settings.wording import describe, keys_meant

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Loaded(NamedTuple):
    """A configuration, and what tells its text from others."""

    settings: Settings
    digest: str
    """How its SHA-256 begins."""


def read_settings(
    text: str,
    env: Mapping[str, str],
    read_file: Callable[[str], str],
    listen: Mapping[str, str] = _NOTHING,
) -> Settings:
    """Read the text of a configuration file.

    Args:
        text: the YAML text.
        env: the environment, for `${NAME}`, and for the fronts of the platforms that set it.
        read_file: returns the text of a file or raises OSError, for `${file:PATH}`.
        listen: addresses, by listener, that replace those of the text.

    Raises:
        SettingsError: lists every problem.
    """
    tree = parse_tree(text, Substitution(env, read_file).apply)
    if tree.problems and not tree.root:
        raise SettingsError(tree.problems)
    if listen:
        section = tree.root.setdefault("listen", {})
        if isinstance(section, dict):
            _replace_addresses(section, listen)
    apply_environment(tree.root, env)
    return build_settings(tree)


def _replace_addresses(section: dict[str, object], listen: Mapping[str, str]) -> None:
    """Change where listeners listen; the rest of them, their TLS above all, stays."""
    for name, address in listen.items():
        listener = section.get(name)
        section[name] = {**listener, "address": address} if isinstance(listener, dict) else address


def build_settings(tree: Tree) -> Settings:
    """Check a plain tree and build the settings from it.

    Raises:
        SettingsError: lists every problem, or enough of them, one per path, by their lines.
    """
    settings, findings, meant = _validate(tree.root)
    read = readable(tree.root) if settings is None else settings
    every = chain(findings, check_relations(read))
    # Of a known key under another name the line about the unknown key tells.
    problems = tree.problems_with(each for each in every if each[0] not in meant)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def _validate(
    root: Mapping[str, object],
) -> tuple[Settings | None, list[tuple[Path, str]], set[Path]]:
    """The settings, if all is well, or what is wrong, and keys that have another name there."""
    try:
        return Settings.model_validate(root), [], set()
    except ValidationError as error:
        return None, describe(error), keys_meant(error)
