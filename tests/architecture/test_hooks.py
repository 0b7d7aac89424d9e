"""What a class needs of those that extend it is an abstract method: without one nothing is made.

A method that only raises is found when it is called.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_method_is_left_to_those_who_extend_a_class_in_silence() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "lb").rglob("*.py"))
        if "NotImplementedError" in path.read_text()
    ]
    assert found == []
