"""It is known which modules run, and the sources run where they are asked for."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from lb.wire.compiled import is_compiled
from lb.wire.http2.codec import Http2Codec
from lb.wire.native import mypyc_attr, specialise

ASK = """
import inspect
from lb.wire.http2.codec import Http2Codec
from lb.wire.compiled import is_compiled
print(is_compiled(), inspect.isfunction(Http2Codec.receive))
"""


def asked(**environment: str) -> str:
    argv = [sys.executable, "-c", ASK]
    usual = {name: value for name, value in os.environ.items() if name != "TRITON_LB_PURE"}
    return subprocess.run(
        argv, env=usual | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_it_tells_compiled_functions_from_those_of_a_source() -> None:
    assert is_compiled() == (not inspect.isfunction(Http2Codec.receive))


@pytest.mark.parametrize("value", ["", "0"])
def test_what_is_installed_runs_unless_the_sources_are_asked_for(value: str) -> None:
    here = f"{is_compiled()} {not is_compiled()}"
    chosen = os.environ.get("TRITON_LB_PURE") == "1"
    assert chosen or asked(TRITON_LB_PURE=value) == here


def test_the_sources_run_where_they_are_asked_for() -> None:
    assert asked(TRITON_LB_PURE="1") == "False True"


def test_what_the_compiler_is_told_leaves_a_class_as_it_is() -> None:
    class Thing:
        pass

    assert mypyc_attr(allow_interpreted_subclasses=True)(Thing) is Thing


def test_a_specialised_method_is_a_copy_that_does_the_same() -> None:
    class Base:
        def add(self, first: int, second: int = 2, *, third: int = 3) -> int:
            """Add."""
            return first + second + third

    class Thing(Base):
        pass

    specialise(Thing, "add")
    assert Thing.add is not Base.add
    assert Thing.add.__code__ is not Base.add.__code__
    assert Thing().add(1) == 6
    assert Thing().add(1, 1, third=1) == 3
    assert (Thing.add.__doc__, Thing.add.__qualname__) == (Base.add.__doc__, Base.add.__qualname__)


def test_what_is_no_function_of_python_is_left_alone() -> None:
    class Thing(list[int]):
        pass

    specialise(Thing, "append")
    assert "append" not in vars(Thing)
