"""EndpointSlices of any content and in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.discovery.kubernetes_slices import Slice, read_slice, servers_of
from lb.discovery.source import SourceError
from lb.settings.values import AddressFamily
from tests.fakes.kubernetes import endpoint, ports

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = ("addressType", "ports", "endpoints", "metadata")
CONDITIONS = st.none() | st.booleans()
PODS = st.builds(
    lambda number, six, ready, serving, terminating: (
        six,
        endpoint(
            f"fd00::{number}" if six else f"10.0.0.{number}",
            f"p{number}",
            ready=ready,
            serving=serving,
            terminating=terminating,
        ),
    ),
    st.integers(1, 5),
    st.booleans(),
    CONDITIONS,
    CONDITIONS,
    CONDITIONS,
)
SLICES = st.lists(
    st.tuples(st.lists(PODS, max_size=5), st.sampled_from(("http", "grpc"))), max_size=4
)


def made(pods: list[tuple[bool, dict[str, Any]]], port: str) -> list[Slice]:
    found = []
    for six, family in ((False, "IPv4"), (True, "IPv6")):
        items = [each for is_six, each in pods if is_six is six]
        tree = {"addressType": family, "ports": ports(**{port: 8000}), "endpoints": items}
        each = read_slice(tree)
        assert each is not None
        found.append(each)
    return found


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING) | ANYTHING)
def test_nonsense_is_refused_and_nothing_else_happens(tree: Any) -> None:
    if isinstance(tree, dict) and "addressType" in tree:
        tree["addressType"] = "IPv4"
    try:
        read_slice(tree)
    except SourceError:
        return


@given(SLICES, st.randoms(use_true_random=False))
def test_the_order_of_slices_means_nothing(slices: Any, rng: Any) -> None:
    found = [each for pods, port in slices for each in made(pods, port)]
    other = list(found)
    rng.shuffle(other)
    wanted = (None, 8000, None)
    family = AddressFamily.AUTO
    assert servers_of(found, wanted, family) == servers_of(other, wanted, family)


@given(SLICES)
def test_nobody_is_there_twice_and_nobody_who_terminates_beside_one_who_does_not(
    slices: Any,
) -> None:
    found = [each for pods, port in slices for each in made(pods, port)]
    servers = servers_of(found, (None, 8000, None), AddressFamily.AUTO)
    names = [server.pod for server in servers]
    assert len(set(names)) == len(names)
    endpoints = [each for one in found for each in one.endpoints]
    leaving = {each.pod for each in endpoints if each.is_terminating}
    ready = {each.pod for each in endpoints if each.is_ready} - leaving
    assert set(names) == ready or (not ready and set(names) <= leaving)
