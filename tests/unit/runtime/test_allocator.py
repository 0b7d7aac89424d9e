from __future__ import annotations

import os
import platform
from pathlib import Path

from lb.runtime.limits import (
    FreedMemory,
    give_back_freed_memory,
    keep_freed_memory,
    share_one_heap,
)

MIB = 2**20


def test_glibc_takes_the_settings() -> None:
    assert share_one_heap() is (platform.libc_ver()[0] == "glibc")
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    assert give_back_freed_memory() is (platform.libc_ver()[0] == "glibc")


def test_memory_is_given_back_once_a_load_is_over_that_needed_much(tmp_path: Path) -> None:
    statm = tmp_path / "statm"

    def grow(resident: int) -> None:
        statm.write_text(f"1000000 {resident * MIB // os.sysconf('SC_PAGE_SIZE')} 0 0 0 0 0")

    def looks(resident: int, held: int = 0) -> bool:
        grow(resident)
        return freed.is_due(held)

    grow(80)
    freed = FreedMemory(statm)
    assert not looks(100), "it has hardly grown"
    assert not looks(400, 300 * MIB)
    assert not looks(400), "there may be a pause in the load"
    assert looks(400)
    grow(200)
    freed.given_back()
    assert not looks(220), "the rest is in use"
    assert not looks(220)
    assert not looks(150)
    assert looks(300)
