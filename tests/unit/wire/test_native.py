"""It is known which modules run, and the sources run where they are asked for."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from lb.wire.http2.codec import Http2Codec
from lb.wire.native import is_compiled, mypyc_attr

ASK = """
import inspect
from lb.wire.http2.codec import Http2Codec
from lb.wire.native import is_compiled
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
