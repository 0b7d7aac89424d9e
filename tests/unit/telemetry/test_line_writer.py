"""Lines arrive in order, or are counted as dropped; the producer never waits."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lb.telemetry.line_file import LineFile
from lb.telemetry.line_writer import LineWriter
from tests.fakes.waiting import wait_until

LINES = [b"line %06d\n" % number for number in range(20_000)]


@contextmanager
def pipe(*, blocking: bool = True) -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that holds 64 KiB."""
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    try:
        yield reader, writer
    finally:
        for fd in (reader, writer):
            os.close(fd)


def read(fd: int, size: int) -> bytes:
    """Exactly `size` bytes, or what there is before the end."""
    data = bytearray()
    while len(data) < size and (chunk := os.read(fd, 65536)):
        data += chunk
    return bytes(data)


def drained(fd: int) -> bool:
    """Empty a non-blocking pipe."""
    try:
        while os.read(fd, 65536):
            pass
    except BlockingIOError:
        pass
    return True


def is_gone(name: str) -> bool:
    """Whether no thread has this name."""
    return all(thread.name != name for thread in threading.enumerate())


def test_all_lines_reach_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LineWriter(path, name="test", batch_delay_s=0.001)
    for line in LINES:
        writer.write(line)
    writer.close()
    assert path.read_bytes() == b"".join(LINES)
    assert writer.dropped == 0


def test_a_file_is_appended_to_and_not_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        writer = LineWriter(path, name="test")
        writer.write(b"line\n")
        writer.close()
    assert path.read_bytes() == b"line\nline\n"
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_everything_that_fits_the_queue(blocking: bool) -> None:
    with pipe(blocking=blocking) as (reader, fd):
        writer = LineWriter(fd, name="test")
        for line in LINES:
            writer.write(line)
        expected = b"".join(LINES)
        assert read(reader, len(expected)) == expected
        writer.close()
    assert writer.dropped == 0


def test_an_unread_pipe_costs_lines_and_no_time() -> None:
    with pipe() as (reader, fd):
        writer = LineWriter(fd, name="test", queue_bytes=4096)
        cpu_before = time.thread_time()
        for line in LINES * 5:
            writer.write(line)
        assert time.thread_time() - cpu_before < 2.0
        assert writer.dropped > len(LINES)
        writer.close(timeout_s=0.01)
        # Let the thread go: its descriptor must not be closed under it.
        os.set_blocking(reader, False)
        wait_until(lambda: drained(reader) and is_gone("log:test"))


def test_every_line_is_either_written_or_counted() -> None:
    reader, fd = os.pipe()
    received = bytearray()

    def take() -> None:
        while chunk := os.read(reader, 65536):
            received.extend(chunk)

    taker = threading.Thread(target=take)
    taker.start()
    writer = LineWriter(fd, name="test", queue_bytes=4096)
    for line in LINES:
        writer.write(line)
    writer.close(timeout_s=30.0)
    os.close(fd)
    taker.join()
    os.close(reader)
    lines = bytes(received).splitlines(keepends=True)
    assert len(lines) + writer.dropped == len(LINES)
    assert lines == sorted(lines)


def test_a_full_disk_drops_lines_and_counts_them_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = LineWriter(Path("/dev/full"), name="test")
    for line in LINES[:100]:
        writer.write(line)
    writer.close()
    assert writer.dropped == 100
    (told,) = caplog.records
    expected = {"log": "test", "path": "/dev/full", "error": "No space left on device"}
    assert told.getMessage() == "log file has lost lines"
    assert expected.items() <= vars(told).items()


def test_a_disk_that_is_full_again_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    file = LineFile(path, "test")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (2, 2, before[0], 8, 8):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            file.write(b"line\n", lambda: True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.close()
    assert [each.getMessage() for each in caplog.records] == ["log file has lost lines"] * 2


def test_a_reader_that_left_drops_lines_and_counts_them() -> None:
    reader, fd = os.pipe()
    os.close(reader)
    writer = LineWriter(fd, name="test")
    for line in LINES[:100]:
        writer.write(line)
    writer.close()
    os.close(fd)
    assert writer.dropped == 100


def test_after_a_line_that_was_cut_the_next_begins_on_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LineWriter(path, name="test")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        writer.write(b"first\n")
        wait_until(lambda: writer.dropped == 1)
        writer.write(b"second\n")
        wait_until(lambda: writer.dropped == 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.write(b"third\n")
    writer.close()
    assert path.read_bytes() == b"fir\nthird\n"
    assert writer.dropped == 2


def test_reopening_leaves_the_renamed_file_alone(tmp_path: Path) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    writer = LineWriter(path, name="test")
    writer.write(b"old\n")
    wait_until(lambda: path.read_bytes() == b"old\n")
    path.rename(rotated)
    writer.reopen()
    wait_until(path.exists)
    writer.write(b"new\n")
    writer.close()
    assert (rotated.read_bytes(), path.read_bytes()) == (b"old\n", b"new\n")


def test_when_reopening_fails_the_old_file_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    writer = LineWriter(folder / "log", name="test")
    folder.rename(tmp_path / "moved")
    writer.reopen()
    writer.write(b"line\n")
    writer.close()
    assert (tmp_path / "moved" / "log").read_bytes() == b"line\n"
    assert "log file cannot be reopened" in caplog.text


def test_what_the_device_says_when_a_file_is_closed_ends_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a full share on NFS, which writes later: the descriptor is closed all the same."""
    path = tmp_path / "log"
    close, failed = os.close, []

    def failing(fd: int) -> None:
        is_log = Path(f"/proc/self/fd/{fd}").readlink().parent == tmp_path
        close(fd)
        if is_log:
            failed.append(fd)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "close", failing)
    writer = LineWriter(path, name="test-quota")
    path.rename(tmp_path / "log.1")
    writer.reopen()
    wait_until(lambda: len(failed) == 1)
    writer.write(b"line\n")
    writer.close()
    assert is_gone("log:test-quota")
    assert path.read_bytes() == b"line\n"
    assert len(failed) == 2
    assert [record.message for record in caplog.records] == ["log file has lost lines"] * 2


def test_reopening_a_descriptor_changes_nothing() -> None:
    with pipe() as (reader, fd):
        writer = LineWriter(fd, name="test")
        writer.reopen()
        writer.write(b"line\n")
        assert read(reader, 5) == b"line\n"
        writer.close()


def test_after_closing_lines_are_counted_as_dropped(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "log", name="test")
    writer.close()
    writer.close()
    writer.write(b"late\n")
    assert writer.dropped == 1


def test_closing_ends_the_thread_even_while_nobody_reads() -> None:
    with pipe(blocking=False) as (_, fd):
        writer = LineWriter(fd, name="unread")
        for line in LINES:
            writer.write(line)
        writer.close(timeout_s=30.0)
        assert is_gone("log:unread")
        assert 0 < writer.dropped < len(LINES)


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LineWriter(tmp_path / "nowhere" / "log", name="test")


def test_a_fifo_that_nobody_reads_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="a FIFO that nobody reads"):
        LineWriter(tmp_path / "fifo", name="test")
