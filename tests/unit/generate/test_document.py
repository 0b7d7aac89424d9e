"""YAML documents: what is written is read again as it was meant."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from lb.generate.document import HEADER, Shared, document, merged

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc<", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc<", min_size=1, max_size=3), VALUES, max_size=3))
def test_a_document_is_read_as_it_was_written(content: dict[str, object]) -> None:
    assert yaml.safe_load(document(content)) == content


def test_what_is_shared_stands_once_and_is_merged() -> None:
    common = Shared("server", {"image": "x", "ports": [1]})
    text = document({"x-server": common, "a": merged(common, {"own": 1}), "b": merged(common, {})})
    assert text.count("image") == 1
    assert text.count("<<: *server") == 2
    read = yaml.safe_load(text)
    assert read["a"] == {"image": "x", "ports": [1], "own": 1}
    assert read["b"] == {"image": "x", "ports": [1]}


def test_comments_stand_below_our_first_line() -> None:
    text = document({"a": [1], "text": "one\ntwo\n"}, "first", "", "second")
    assert text.startswith(f"{HEADER}\n# first\n#\n# second\n\na:\n  - 1\n")
    assert "text: |\n  one\n  two\n" in text


def test_equal_parts_are_written_out() -> None:
    again = {"a": 1}
    assert "&" not in document({"x": again, "y": again})
