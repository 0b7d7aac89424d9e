"""Tests that guard the relay hold while it is rebuilt: they do not know its classes.

`tests/fakes/relay.py` alone puts relays together for them. Unit tests know the classes that they
test, and go with them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
INNER = ("lb.proxy", "lb.balancing")
FACTORY = "tests/fakes/relay.py"
UNIT = "tests/unit/"
_REFERENCE = "a plain form of a pure policy, which is compared with it"
_PROPERTIES = "properties of a pure policy, which has no sockets"
_BENCHMARK = "measures pure policies"
MAY_IMPORT = {
    "tests/property/test_pickers.py": _PROPERTIES,
    "tests/property/test_schedule_shortcuts.py": _PROPERTIES,
    "tests/property/test_sequence_work.py": _PROPERTIES,
    "tests/reference/picking.py": _REFERENCE,
    "tests/reference/scheduling.py": _REFERENCE,
    "tests/fuzz/targets/sequences.py": "fuzzes the inspection of JSON bodies, a pure parser",
    "tests/architecture/test_tuning.py": "holds the constants of policies against their record",
    "benchmarks/ablate/overrides.py": _BENCHMARK,
    "benchmarks/ablate/scenes.py": _BENCHMARK,
    "benchmarks/ablate/table.py": _BENCHMARK,
    "benchmarks/ablate/variants.py": _BENCHMARK,
    "benchmarks/accept_spread.py": _BENCHMARK,
    "benchmarks/bench_pick.py": _BENCHMARK,
    "benchmarks/bench_sharing.py": _BENCHMARK,
    "benchmarks/micro/scenes.py": _BENCHMARK + ": the `pick` methods",
    "benchmarks/replicas.py": _BENCHMARK,
    "benchmarks/study/simulate_goals.py": _BENCHMARK,
    "benchmarks/study/simulate_policies.py": _BENCHMARK,
    "benchmarks/study/simulate_sequences.py": _BENCHMARK,
    "benchmarks/study/simulated_balancers.py": _BENCHMARK,
    "benchmarks/workers.py": _BENCHMARK,
}
"""Beside unit tests and the factory, with reasons."""
FAKES_OF_UNIT_TESTS = {"tests/fakes/http2_connections.py", "tests/fakes/http1_sides.py"}
"""They hand the classes of a relay on to unit tests."""
CONTAINERS = {"parts", "relay", "paper", "bench"}
"""Names of relays in tests; what they have under `relay`, `http1` and `http2` is not for guards."""

PATHS = sorted(
    str(path.relative_to(TOP))
    for folder in ("tests", "benchmarks", "tools", "deploy")
    for path in (TOP / folder).rglob("*.py")
)
GUARDS = [path for path in PATHS if path != FACTORY and not path.startswith(UNIT)]


def inner_imports(source: str) -> list[str]:
    """Modules of the relay that a module imports, also within functions."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [name for name in names if f"{name}.".startswith(tuple(f"{i}." for i in INNER))]
    return found


def inner_attributes(source: str) -> Iterator[str]:
    """Accesses that lead past the factory into the classes of a relay."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        holder = node.value
        name = getattr(holder, "attr", getattr(holder, "id", ""))
        if (
            node.attr == "dispatcher"
            or (name in CONTAINERS and node.attr in {"relay", "http1", "http2"})
            or (name == "connection" and isinstance(holder, ast.Attribute) and _is_of_relay(holder))
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _is_of_relay(attribute: ast.Attribute) -> bool:
    """Whether it is one of a call or an attempt."""
    owner = attribute.value
    return getattr(owner, "attr", getattr(owner, "id", "")) in {"call", "attempt"}


def test_guards_do_not_name_the_classes_of_the_relay() -> None:
    named: dict[str, list[str]] = {}
    for path in GUARDS:
        source = (TOP / path).read_text()
        found = [] if path in MAY_IMPORT else inner_imports(source)
        if path not in FAKES_OF_UNIT_TESTS:
            found += inner_attributes(source)
        if found:
            named[path] = found
    assert named == {}


@pytest.mark.parametrize("path", MAY_IMPORT)
def test_exceptions_are_still_needed(path: str) -> None:
    assert inner_imports((TOP / path).read_text())


def test_both_ways_into_the_relay_are_found() -> None:
    source = """
import lb.proxy
from lb import balancing
from lb.proxy.http2.relay import Http2Relay

def late():
    from lb.balancing.model_backend import ModelBackend

paper.relay.flush()
running.relay.relay.servers
sides.parts.http1.upstreams
self.product.dispatcher
side.call.connection.streams
"""
    assert len(inner_imports(source)) == 4
    assert len(list(inner_attributes(source))) == 5
    assert inner_imports("import lb.proxying\nfrom lb.domain import proxy") == []
