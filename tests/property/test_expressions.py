"""No regular expression that reads what peers send takes steps without proportion to it."""

from __future__ import annotations

import pkgutil
import re
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

import pytest

READERS = ("lb.access", "lb.kserve", "lb.net", "lb.probes", "lb.proxy", "lb.telemetry", "lb.wire")
REPEATS = 22
"""With an expression that tries each repeated part in two ways that is seconds of CPU."""
BOUND_S = 0.5
"""What one match may take of CPU; it takes some microseconds."""
STARTS = ("", "a", "/a", '"', "a=", 'a{a="')
ENDS = ("", "!", "\0")


def expressions() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """All that are kept in a module, by where they are."""
    for package in map(import_module, READERS):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = import_module(found.name)
            for name, value in vars(module).items():
                pattern = getattr(value, "__self__", value)
                if isinstance(pattern, re.Pattern):
                    yield f"{found.name}.{name}", pattern


EXPRESSIONS = dict(expressions())


def test_expressions_are_found() -> None:
    assert "lb.wire.http2.heads.is_base64" in EXPRESSIONS
    assert "lb.wire.http1.request._HEAD" in EXPRESSIONS


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_is_repeated_is_tried_in_one_way(name: str) -> None:
    pattern = EXPRESSIONS[name]
    texts = isinstance(pattern.pattern, str)
    for size in (1, 2):
        for word in map("".join, product(' \t,;=a0%"\\/:.\xff', repeat=size)):
            for start, end in product(STARTS, ENDS):
                text = start + word * REPEATS + end
                value = text if texts else text.encode("latin-1")
                before = time.thread_time()
                pattern.fullmatch(value)
                pattern.search(value)
                assert time.thread_time() - before < BOUND_S, value


def test_a_long_list_of_nothing_is_refused_as_binary_metadata() -> None:
    is_base64 = EXPRESSIONS["lb.wire.http2.heads.is_base64"].fullmatch
    assert is_base64(b"," + b" ," * 30_000 + b"!") is None
    assert is_base64(b"," + b" ," * 30_000) is not None
    assert is_base64(b"QQ== ,\tQQ,,") is not None
    assert is_base64(b"QQ== QQ") is None
