"""Which Python the measured triton-lb runs with."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from benchmarks.load.interpreter import Interpreter, ask, choose

PLAIN = Interpreter(Path("plain"), "3.11.7", False, "cpython-311")
FAST = Interpreter(Path("fast"), "3.11.2", True, "cpython-311")


def test_an_optimised_one_of_the_same_version_is_preferred_to_a_plain_one() -> None:
    assert choose(PLAIN, FAST) is FAST


def test_ours_serves_where_it_is_optimised_or_no_other_is() -> None:
    assert choose(FAST, PLAIN) is FAST
    assert choose(PLAIN, PLAIN) is PLAIN
    assert choose(PLAIN, None) is PLAIN


def test_one_that_cannot_run_what_was_compiled_for_ours_is_not_taken() -> None:
    assert choose(PLAIN, Interpreter(Path("new"), "3.12.1", True, "cpython-312")) is PLAIN


def test_the_report_says_when_the_interpreter_is_a_plain_build() -> None:
    assert "WITHOUT optimisations" in str(PLAIN)
    assert str(FAST) == "3.11.2, an optimised build"


def test_an_interpreter_says_its_version_and_one_that_is_not_there_nothing() -> None:
    found = ask(Path(sys.executable))
    assert found is not None
    assert (found.version, found.tag) == (platform.python_version(), sys.implementation.cache_tag)
    assert ask(Path("/nowhere/python")) is None
