"""The file that says which process serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lb.runtime.signals import PidFileError, remove_pid, write_pid


def test_it_holds_our_id_until_we_end(tmp_path: Path) -> None:
    path = tmp_path / "lb.pid"
    write_pid(str(path), os.getpid())
    assert path.read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == [path]
    remove_pid(str(path))
    assert not path.exists()


def test_that_of_another_process_stays(tmp_path: Path) -> None:
    path = tmp_path / "lb.pid"
    path.write_text("1\n")
    remove_pid(str(path))
    assert path.exists()


def test_one_that_is_gone_is_nothing_to_worry_about(tmp_path: Path) -> None:
    remove_pid(str(tmp_path / "none"))
    assert not list(tmp_path.iterdir())


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lb.pid"
    os.mkfifo(path)
    with pytest.raises(PidFileError, match="it is a FIFO or pipe"):
        write_pid(str(path), os.getpid())
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_told() -> None:
    with pytest.raises(PidFileError, match="cannot write the PID file /nowhere/pid: No such file"):
        write_pid("/nowhere/pid", 1)
