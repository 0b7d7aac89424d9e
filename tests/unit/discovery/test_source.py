from __future__ import annotations

from lb.discovery.file import FileSource
from lb.discovery.source import Entries, Source
from lb.net.file_thread import FileThread


def nothing(_path: str) -> Entries:
    return ()


async def test_whatever_yields_whole_sets_is_a_source() -> None:
    source: Source = FileSource("/dev/null", nothing, FileThread())
    assert await source.next() == ()
