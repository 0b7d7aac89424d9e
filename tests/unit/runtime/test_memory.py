from __future__ import annotations

from pathlib import Path

import pytest

from lb.runtime.memory import held_ceiling, memory_limit

MIB = 2**20


def test_limit_of_the_container_wins_over_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{64 * MIB}\n")
    assert memory_limit((limit,)) == 64 * MIB


@pytest.mark.parametrize("text", ["max\n", "", "many", "18446744073709551615"])
def test_no_usable_container_limit_means_the_machine(tmp_path: Path, text: str) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    assert memory_limit((limit, tmp_path / "missing")) == memory_limit(())


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
    assert held_ceiling(configured, limit) == ceiling
