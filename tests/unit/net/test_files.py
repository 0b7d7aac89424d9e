"""Regular files, what is none, and states of files."""

from __future__ import annotations

import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from lb.net.files import (
    TOUCHED,
    answer_of,
    check_appendable,
    print_of,
    read_text,
    replace_text,
    touching,
)


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


def test_text_is_read_through_links_and_up_to_a_limit(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "link"
    file.write_text("text é")
    link.symlink_to(file)
    assert read_text(str(link)) == "text é"
    assert read_text(str(file), 2) == "te"
    assert read_text(str(file), encoding="ascii", errors="replace").startswith("text ")
    with pytest.raises(UnicodeDecodeError):
        read_text(str(file), encoding="ascii")
    with pytest.raises(FileNotFoundError):
        read_text(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("fifo", "it is a FIFO or pipe, not a regular file"),
        ("folder", "it is a directory, not a regular file"),
        ("device", "it is a device, not a regular file"),
        ("socket", "No such device or address"),
    ],
)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    tmp_path: Path, kind: str, shown: str
) -> None:
    path = tmp_path / kind
    with socket.socket(socket.AF_UNIX) as listener:
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "device":
                path.symlink_to("/dev/zero")
            case _:
                listener.bind(str(path))
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match=shown) as caught:
            read_text(str(path))
        assert caught.value.strerror == shown
        assert set(os.listdir("/proc/self/fd")) <= before


def test_a_thread_says_which_file_it_waits_for() -> None:
    with touching("/mnt/a"):
        assert TOUCHED[threading.get_ident()][0] == "/mnt/a"
    assert threading.get_ident() not in TOUCHED


def test_a_file_that_does_not_answer_in_time_is_an_error_and_given_up() -> None:
    answers, given_up = threading.Event(), threading.Event()

    def hang() -> str:
        answers.wait()
        return "late"

    def discard(result: str) -> None:
        assert result == "late"
        given_up.set()

    with pytest.raises(OSError, match="its file system hangs") as raised:
        answer_of(hang, "/mnt/gone", discard=discard, timeout_s=0.01)
    assert raised.value.filename == "/mnt/gone"
    assert not given_up.is_set()
    answers.set()
    assert given_up.wait(30.0)


def test_an_answer_is_what_the_work_returns_or_raises(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        answer_of(lambda: read_text(path), path)
    Path(path).write_text("text")
    assert answer_of(lambda: read_text(path), path) == "text"


def test_checking_a_log_file_makes_none(tmp_path: Path) -> None:
    check_appendable(str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "log").write_text("line\n")
    check_appendable(str(tmp_path / "log"))
    assert (tmp_path / "log").read_text() == "line\n"
    with pytest.raises(FileNotFoundError):
        check_appendable(str(tmp_path / "none" / "log"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="a FIFO that nobody reads"):
        check_appendable(str(tmp_path / "fifo"))


def test_a_text_that_cannot_be_written_as_a_whole_replaces_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a"
    replace_text(str(file), "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_text(str(file), "newer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
