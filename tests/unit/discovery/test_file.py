from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

import pytest

from lb.discovery.file import FileSource
from lb.discovery.source import Entries, SourceError
from lb.net.file_thread import FileStalled, FileThread
from lb.settings.listed import read_backends

_T = TypeVar("_T")


def read(path: str) -> Entries:
    return read_backends(Path(path).read_text(), {}, 1000)


class StallingFiles(FileThread):
    """Files that hang at the next few looks."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging = 0
        """Looks that end without an answer from now on."""

    async def run(
        self,
        key: Hashable,
        work: Callable[[], _T],
        *,
        discard: Callable[[_T], None] | None = None,
    ) -> _T:
        if self.hanging:
            self.hanging -= 1
            raise FileStalled("it does not answer")
        return await super().run(key, work, discard=discard)


class Bench:
    """A file, and a source that looks at it all the time."""

    def __init__(self, folder: Path, text: str | None) -> None:
        self.path = folder / "backends.yaml"
        if text is not None:
            self.put(text)
        self.reads = 0
        self.unreadable = 0
        """Reads that fail from now on."""
        self.files = StallingFiles()
        self.source = FileSource(str(self.path), self._read, self.files, interval_s=0.005)

    def _read(self, path: str) -> Entries:
        self.reads += 1
        if self.unreadable:
            self.unreadable -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    def put(self, text: str) -> None:
        """Replace the file in one step."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)

    async def names(self) -> list[str]:
        async with asyncio.timeout(30):
            return [entry.spec().name for entry in await self.source.next()]

    async def is_quiet(self) -> bool:
        """Whether it has nothing new to say."""
        try:
            async with asyncio.timeout(0.05):
                await self.source.next()
        except TimeoutError:
            return True
        return False


async def test_the_file_is_read_at_once_and_whenever_it_changes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- http: a:1\n")
    assert await bench.names() == ["a:1"]
    assert await bench.is_quiet()
    assert bench.reads == 1
    bench.put("- http: a:1\n- http: b:1\n")
    assert await bench.names() == ["a:1", "b:1"]


async def test_a_link_to_another_file_is_a_change(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"- http: {name}:1\n")
    bench = Bench(tmp_path, None)
    bench.path.symlink_to(tmp_path / "one")
    assert await bench.names() == ["one:1"]
    other = tmp_path / "other"
    other.symlink_to(tmp_path / "two")
    os.replace(other, bench.path)
    assert await bench.names() == ["two:1"]


async def test_a_bad_file_is_refused_with_every_reason_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- http: a:1\n")
    await bench.names()
    bench.put("- {htp: a:1, kind: x}\n")
    with pytest.raises(SourceError) as raised:
        await bench.names()
    assert str(raised.value) == (
        "line 1: backends[0].kind: expected 'triton', 'kserve', 'tfserving' or 'generic', got 'x'; "
        "line 1: backends[0].htp: unknown key; did you mean http?"
    )
    assert await bench.is_quiet()
    assert bench.reads == 3, "it was read once more: it may have been half written"
    bench.put("- http: b:1\n")
    assert await bench.names() == ["b:1"]


async def test_a_file_that_is_whole_at_the_second_look_was_never_bad(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- http: a:1\n")
    texts = iter(["- http: a:1\n", "- http: [", "- http: b:1\n"])
    source = FileSource(
        str(bench.path),
        lambda _path: read_backends(next(texts), {}, 1000),
        FileThread(),
        interval_s=0.005,
    )
    await source.next()
    bench.put("whatever it is")
    async with asyncio.timeout(30):
        assert [entry.spec().name for entry in await source.next()] == ["b:1"]


async def test_a_file_that_is_missing_or_no_text_is_a_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)
    with pytest.raises(SourceError, match=r"^cannot be read: No such file or directory$"):
        await bench.names()
    bench.put("- http: a:1\n")
    assert await bench.names() == ["a:1"]
    bench.path.write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match=r"^cannot be read: it is not UTF-8 text$"):
        await bench.names()
    bench.path.unlink()
    with pytest.raises(SourceError, match="No such file"):
        await bench.names()


async def test_a_file_that_answers_again_is_good_even_if_it_has_not_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- http: a:1\n")
    assert await bench.names() == ["a:1"]
    bench.files.hanging = 2
    for _ in range(2):
        with pytest.raises(SourceError, match=r"^it does not answer$"):
            await bench.names()
    assert await bench.names() == ["a:1"]
    assert await bench.is_quiet()


async def test_a_bad_file_that_answers_again_is_still_bad(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- name: x\n")
    with pytest.raises(SourceError) as bad:
        await bench.names()
    bench.files.hanging = 1
    with pytest.raises(SourceError, match=r"^it does not answer$"):
        await bench.names()
    with pytest.raises(SourceError) as again:
        await bench.names()
    assert str(again.value) == str(bad.value)
    assert await bench.is_quiet()


async def test_a_file_that_could_not_be_read_for_a_while_is_good_once_it_can(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, "- http: a:1\n")
    await bench.names()
    bench.put("- http: b:1\n")
    bench.unreadable = 3
    with pytest.raises(SourceError, match=r"^cannot be read: Too many open files$"):
        await bench.names()
    assert await bench.names() == ["b:1"], "and its reason was told once"


async def test_of_very_many_problems_the_first_are_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "- name: x\n" * 9)
    with pytest.raises(SourceError) as raised:
        await bench.names()
    reasons = str(raised.value).split("; ")
    assert len(reasons) == 6
    assert reasons[-1] == "and 4 more"
    bench.put("- name: x\n" * 900)
    with pytest.raises(SourceError, match=r"; and at least 95 more$"):
        await bench.names()


async def test_a_source_is_the_same_while_what_it_goes_by_is() -> None:
    files = FileThread()
    source = FileSource("/a/b.yaml", read, files)
    assert source.name == "file:/a/b.yaml"
    assert source.config == FileSource("/a/b.yaml", read, files).config
    assert source.config != FileSource("/a/b.yaml", read, files, goes_by="more").config
