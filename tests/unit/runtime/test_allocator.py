from __future__ import annotations

import platform

from lb.runtime.allocator import keep_freed_memory


def test_glibc_takes_the_settings() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
