"""Files of a stack against a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.generate.devices import GenerateError
from lb.generate.document import HEADER
from lb.generate.files import GeneratedFile, compare, difference, write

FILES = (
    GeneratedFile("a.yaml", f"{HEADER}\none\n"),
    GeneratedFile("sub/run.sh", "#!/bin/sh\n", is_executable=True),
)


def test_what_was_written_is_the_same(tmp_path: Path) -> None:
    assert [file.path for file in compare(FILES, tmp_path).new] == ["a.yaml", "sub/run.sh"]
    write(FILES, tmp_path)
    comparison = compare(FILES, tmp_path)
    assert comparison.is_same
    assert difference(comparison, tmp_path) == ""
    assert (tmp_path / "a.yaml").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "sub/run.sh").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.yaml", "run.sh", "sub"]


def test_a_change_is_shown_from_there_to_here(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "a.yaml").write_text("two\n")
    comparison = compare(FILES, tmp_path)
    assert [file.path for file, _ in comparison.changed] == ["a.yaml"]
    assert "-two\n" in difference(comparison, tmp_path)
    assert "+one\n" in difference(comparison, tmp_path)


def test_a_new_file_is_shown_whole(tmp_path: Path) -> None:
    shown = difference(compare(FILES[:1], tmp_path), tmp_path)
    assert shown.startswith(f"--- /dev/null\n+++ {tmp_path / 'a.yaml'}\n")


def test_a_file_of_an_earlier_stack_is_left_over(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "theirs.yaml").write_text("not ours\n")
    comparison = compare(FILES[1:], tmp_path)
    assert comparison.left_over == ("a.yaml",)
    assert not comparison.is_same
    assert "no longer part of the stack" in difference(comparison, tmp_path)


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    (tmp_path / "sub").write_text("a file")
    with pytest.raises(GenerateError, match=r"a\.yaml"):
        compare(FILES[:1], tmp_path)
    with pytest.raises(GenerateError, match=r"run\.sh"):
        write(FILES[1:], tmp_path)
