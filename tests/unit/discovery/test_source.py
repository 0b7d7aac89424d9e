from __future__ import annotations

from lb.discovery.file import FileSource
from lb.discovery.source import Entries, Source


def nothing(_path: str) -> Entries:
    return ()


async def test_whatever_yields_whole_sets_is_a_source() -> None:
    source: Source = FileSource("/dev/null", nothing)
    assert await source.next() == ()
