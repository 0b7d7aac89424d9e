"""States of files."""

from __future__ import annotations

from pathlib import Path

from lb.net.files import print_of


def test_a_file_that_is_left_alone_keeps_its_print(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert print_of(str(file)) is None
    file.write_text("one")
    assert print_of(str(file)) == print_of(str(file)) is not None


def test_a_file_that_was_replaced_has_another_print_also_through_a_link(tmp_path: Path) -> None:
    file, other, link = (tmp_path / name for name in ("a", "b", "link"))
    file.write_text("one")
    other.write_text("two")
    link.symlink_to(file)
    before = print_of(str(link))
    assert before == print_of(str(file))
    other.replace(file)
    assert print_of(str(link)) != before
