"""No text and no tree of values makes reading settings do anything but answer or refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.settings.model import Settings
from lb.settings.problems import SettingsError
from lb.settings.reading import build_settings, read_settings
from lb.settings.shape import keys_at
from lb.settings.tree import Tree

KEYS = sorted(
    {key for path in ((), ("listen", "http"), ("backends", 0)) for key in keys_at(path)}
    | {key for name in Settings.model_fields for key in keys_at((name,))}
)
CHARACTERS = "abk:-[]{}\n \t'\"&*!|>%@#~?,./0129$\\\x00\x85\u2028\udcffäé٣"
"""A few of each sort: signs of YAML, of addresses and of references, and troublemakers."""
GOOD = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "a:1"}]}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(CHARACTERS, max_size=8),
    st.sampled_from(["127.0.0.1:8000", "unix:/a", "1s", "64KiB", "auto", "${X}", "a:0", "1e999"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS) | st.text(CHARACTERS, max_size=3), inner, max_size=4),
    ),
    max_leaves=12,
)


def read_nothing(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), VALUES, max_size=3))
def test_any_tree_becomes_settings_or_a_list_of_problems(sections: dict[str, object]) -> None:
    tree = Tree()
    tree.root = {**GOOD, **sections}
    try:
        said = [backend.name for backend in build_settings(tree).specs()]
    except SettingsError as error:
        said = [problem.message for problem in error.problems]
    assert said
    assert all(said)


@given(st.text(CHARACTERS))
def test_any_text_is_refused_with_its_problems(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(text, {}, read_nothing)
    assert caught.value.problems
