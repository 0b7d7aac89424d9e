"""What EndpointSlices mean."""

from __future__ import annotations

from typing import Any

import pytest

from lb.discovery.kubernetes_slices import Port, Server, Slice, read_slice, servers_of
from lb.discovery.source import SourceError
from lb.settings.values import AddressFamily
from tests.fakes.kubernetes import endpoint, leaving, ports

PORTS: tuple[Port | None, ...] = ("http", "grpc", "metrics")


def item(*endpoints: dict[str, Any], family: str = "IPv4", **numbers: int) -> dict[str, Any]:
    named = ports(**(numbers or {"http": 8000, "grpc": 8001}))
    return {"addressType": family, "ports": named, "endpoints": list(endpoints)}


def made(*endpoints: dict[str, Any], family: str = "IPv4", **numbers: int) -> Slice:
    found = read_slice(item(*endpoints, family=family, **numbers))
    assert found is not None
    return found


def hosts(
    *slices: Slice, wanted: tuple[Port | None, ...] = PORTS, family: str = "auto"
) -> list[str]:
    return [each.host for each in servers_of(slices, wanted, AddressFamily(family))]


def test_a_pod_that_is_ready_is_a_server() -> None:
    (found,) = servers_of([made(endpoint("10.0.0.1", "p"))], PORTS, AddressFamily.AUTO)
    assert found == Server("p", "10.0.0.1", (8000, 8001, None))


@pytest.mark.parametrize(
    ("conditions", "is_used"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": None}, True),  # unknown counts as ready
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        # With publishNotReadyAddresses they are ready whatever they do.
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False, "terminating": False}, True),
    ],
)
def test_conditions_decide(conditions: dict[str, bool | None], is_used: bool) -> None:
    other = endpoint("10.0.0.9", "other")
    found = hosts(made(endpoint("10.0.0.1", "p", **conditions), other))
    assert ("10.0.0.1" in found) is is_used


@pytest.mark.parametrize(("serving", "found"), [(True, ["10.0.0.1"]), (False, [])])
def test_who_terminates_serves_where_there_is_nobody_else(serving: bool, found: list[str]) -> None:
    dead = endpoint("10.0.0.2", "dead", ready=False)
    assert hosts(made(leaving("10.0.0.1", "p", serving=serving), dead)) == found


def test_a_pod_that_moves_between_slices_counts_once() -> None:
    pod = endpoint("10.0.0.1", "p")
    assert hosts(made(pod), made(pod, endpoint("10.0.0.2", "q"))) == ["10.0.0.1", "10.0.0.2"]


def test_of_two_slices_the_one_that_says_terminating_knows_more() -> None:
    other = endpoint("10.0.0.9", "other")
    for slices in ((0, 1), (1, 0)):
        both = (made(endpoint("10.0.0.1", "p"), other), made(leaving("10.0.0.1", "p")))
        assert hosts(*(both[index] for index in slices)) == ["10.0.0.9"]


def test_a_successor_with_the_same_name_or_address_is_another_pod() -> None:
    old = leaving("10.0.0.1", "p")
    assert hosts(made(old), made(endpoint("10.0.0.2", "p", uid="new"))) == ["10.0.0.2"]
    assert hosts(made(old), made(endpoint("10.0.0.1", "q", uid="new"))) == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("family", "found"),
    [("auto", ["10.0.0.1", "fd00::2"]), ("ipv4", ["10.0.0.1"]), ("ipv6", ["fd00::1", "fd00::2"])],
)
def test_a_pod_with_both_kinds_of_addresses_counts_once(family: str, found: list[str]) -> None:
    four = made(endpoint("10.0.0.1", "p"))
    six = made(endpoint("fd00::1", "p"), endpoint("fd00:0::2", "q"), family="IPv6")
    assert hosts(six, four, family=family) == found


def test_ports_come_by_name_or_by_number_and_from_each_service() -> None:
    pod = endpoint("10.0.0.1", "p")
    slices = [made(pod, web=8000), made(pod, rpc=9001)]
    for wanted, found in (
        (("web", "rpc", None), (8000, 9001, None)),
        ((8080, None, 8002), (8080, None, 8002)),
    ):
        (server,) = servers_of(slices, wanted, AddressFamily.AUTO)
        assert server.ports == found


def test_whoever_lacks_a_port_is_left_out_until_it_has_it() -> None:
    half, whole = made(endpoint("10.0.0.1", "p"), http=1), made(endpoint("10.0.0.2", "q"))
    assert hosts(half, whole) == ["10.0.0.2"]
    with pytest.raises(SourceError, match=r"has the ports that are configured \(http and grpc\)"):
        hosts(half)
    with pytest.raises(SourceError, match="grpc"):
        hosts(half, wanted=(None, "grpc", None))


def test_other_protocols_and_ports_without_a_number_are_none() -> None:
    tree = item(endpoint("10.0.0.1", "p"))
    tree["ports"] = [
        {"name": "http", "port": 1, "protocol": "UDP"},
        {"name": "grpc", "port": None},
        {"name": "plain", "port": 3},
        {"port": 4},
    ]
    found = read_slice(tree)
    assert found is not None
    assert found.ports == {"plain": 3, "": 4}


def test_what_is_no_pod_goes_by_its_address() -> None:
    node = {**endpoint("10.0.0.1"), "targetRef": {"kind": "Node", "name": "n", "uid": "u"}}
    assert [each.pod for each in made(node, endpoint("10.0.0.2")).endpoints] == ["", ""]


@pytest.mark.parametrize("key", ["ports", "endpoints"])
def test_empty_lists_may_be_null(key: str) -> None:
    tree = {**item(endpoint("10.0.0.1", "p")), key: None}
    assert read_slice(tree) is not None


def test_slices_of_host_names_are_passed_over() -> None:
    assert read_slice(item(endpoint("10.0.0.1"), family="FQDN")) is None


@pytest.mark.parametrize(
    "tree",
    [
        7,
        {},
        {"addressType": "IPv4", "endpoints": 7},
        {"addressType": "IPv4", "endpoints": [{}]},
        {"addressType": "IPv4", "endpoints": [{"addresses": []}]},
        {"addressType": "IPv4", "endpoints": [{"addresses": "10.0.0.1"}]},
        {"addressType": "IPv4", "endpoints": [{"addresses": ["host"]}]},
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": 7}]},
        {"addressType": "IPv4", "ports": [{"port": 0}]},
        {"addressType": "IPv4", "ports": [{"port": "x"}]},
        {"addressType": "IPv4", "ports": [7]},
        {"addressType": "IPv4", "ports": [{"name": "x" * 254, "port": 1}]},
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "p", uid="u" * 254)]},
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1")] * 1001},
        # Texts that metrics, logs and URLs cannot hold.
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "\ud800x")]},
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "a\nb")]},
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "a/b")]},
        {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "p", uid="\ud800")]},
        {"addressType": "IPv4", "ports": [{"name": "\ud800", "port": 1}]},
    ],
)
def test_what_is_no_slice_is_refused(tree: object) -> None:
    with pytest.raises(SourceError, match="an EndpointSlice that cannot be read"):
        read_slice(tree)
