from __future__ import annotations

import platform

from lb.runtime.limits import keep_freed_memory, share_one_heap


def test_glibc_takes_the_settings() -> None:
    assert share_one_heap() is (platform.libc_ver()[0] == "glibc")
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
