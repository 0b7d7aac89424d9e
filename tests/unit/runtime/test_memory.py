from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lb.runtime.limits import Memory, find_memory, is_limited
from tests.fakes.process import ENVIRONMENT

MIB = 2**20


def test_limit_of_the_container_wins_over_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{64 * MIB}\n")
    assert find_memory((limit,)).limit == 64 * MIB


@pytest.mark.parametrize("text", ["max\n", "", "many", "18446744073709551615"])
def test_no_usable_container_limit_means_the_machine(tmp_path: Path, text: str) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    assert find_memory((limit, tmp_path / "missing")) == find_memory(())


@pytest.mark.parametrize(
    ("configured", "limit", "ceiling"),
    [
        (0, 512 * MIB, 128 * MIB),
        (0, 64 * 1024 * MIB, 512 * MIB),
        (10 * MIB, 64 * 1024 * MIB, 10 * MIB),
    ],
)
def test_ceiling_is_a_quarter_at_most_512_mib_unless_configured(
    configured: int, limit: int, ceiling: int
) -> None:
    assert Memory(limit).ceiling(configured) == ceiling


@pytest.mark.parametrize(
    ("configured", "room", "ceiling"),
    [
        (0, 200 * MIB, 100 * MIB),
        (0, 64 * 1024 * MIB, 512 * MIB),
        (10 * MIB, 200 * MIB, 10 * MIB),
        (512 * MIB, 200 * MIB, 100 * MIB),
        (0, 0, MIB),
    ],
)
def test_a_limit_of_the_process_leaves_half_of_its_room_whatever_is_configured(
    configured: int, room: int, ceiling: int
) -> None:
    assert Memory(64 * 1024 * MIB, room).ceiling(configured) == ceiling


@pytest.mark.parametrize(("kind", "field"), [("as", "0"), ("data", "5")])
def test_what_is_mapped_counts_toward_a_limit_of_the_process(
    tmp_path: Path, kind: str, field: str
) -> None:
    # 40 MiB in the field that counts, and much more in all others.
    pages = 40 * MIB // resource.getpagesize()
    statm = tmp_path / "statm"
    statm.write_text(" ".join(str(pages if str(n) == field else 9 * pages) for n in range(7)))
    code = (
        "from pathlib import Path; from lb.runtime.limits import find_memory, is_limited; "
        f"print(is_limited(), find_memory((), Path({str(statm)!r})).room)"
    )
    done = subprocess.run(
        ("prlimit", f"--{kind}={900 * MIB}", sys.executable, "-c", code),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", str(860 * MIB)]


@pytest.mark.parametrize("text", ["", "a b c d e f g"])
def test_without_a_usable_count_much_is_taken_for_mapped(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_limited()
    assert find_memory(()).room is None
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024 * MIB, 1024 * MIB))
    statm = tmp_path / "statm"
    statm.write_text(text)
    assert find_memory((), statm).room == find_memory((), tmp_path / "none").room == 768 * MIB
