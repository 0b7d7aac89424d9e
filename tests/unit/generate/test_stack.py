"""Stacks: ports that nobody else has, weights from compute slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.generate.devices import Device, GenerateError, parse_listing, whole_gpus
from lb.generate.stack import (
    Listen,
    Options,
    ServerKind,
    free_ports,
    local_address,
    make_stack,
    taken_ports,
    weights,
)
from tests.deploy.listings import read_listing


def test_each_device_has_a_server_with_ports_of_its_own() -> None:
    stack = make_stack(Options(), whole_gpus(8))
    assert [server.http for server in stack.servers] == list(range(18000, 18800, 100))
    assert [(each.grpc - each.http, each.metrics - each.http) for each in stack.servers] == [
        (1, 2)
    ] * 8


def test_servers_on_the_cpu_have_no_device() -> None:
    stack = make_stack(Options(server=ServerKind.TFSERVING), (), cpu_servers=2)
    assert [(server.name, server.device, server.metrics) for server in stack.servers] == [
        ("cpu-0", None, 0),
        ("cpu-1", None, 0),
    ]
    assert stack.image == "tensorflow/serving:2.18.0"


def test_a_folder_with_a_line_end_in_its_name_is_refused() -> None:
    with pytest.raises(GenerateError, match=r"^--models: .*'/a\\nb: c'"):
        make_stack(Options(models="/a\nb: c"), whole_gpus(1))


def test_an_image_that_is_given_is_used() -> None:
    assert make_stack(Options(image="mine:1"), whole_gpus(1)).image == "mine:1"


@given(
    count=st.integers(1, 300),
    first=st.integers(1, 33000),
    taken=st.sets(st.integers(1, 33000), max_size=6),
)
def test_ports_never_collide(count: int, first: int, taken: set[int]) -> None:
    try:
        starts = free_ports(count, first, taken)
    except GenerateError:
        assert first + 3 * (count + 2 * len(taken)) > 32000
        return
    ports = [start + offset for start in starts for offset in range(3)]
    assert len(starts) == count
    assert len(set(ports) | taken) == len(ports) + len(taken)
    assert max(ports) < 32768


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("eight_gpus", [1] * 8),
        ("a100_seven_slices", [1] * 7),
        ("h100_mixed", [3, 2, 1, 1, 7]),
        ("none", []),
    ],
)
def test_weights_are_compute_slices_in_lowest_terms(listing: str, expected: list[int]) -> None:
    assert weights(parse_listing(read_listing(listing)).devices) == expected


def test_equal_parts_weigh_one_each() -> None:
    parts = [Device(f"0:{number}", f"MIG-{number}", profile="2g.10gb") for number in range(3)]
    assert weights(parts) == [1, 1, 1]


def test_monitoring_and_listeners_take_ports() -> None:
    options = Options(listen=Listen(http="[::]:80"), prometheus=True, grafana=True)
    assert taken_ports(options) == {80, 8001, 8002, 8003, 9090, 3000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(listen=Listen(http="here")), "--http: expected HOST:PORT"),
        (Options(listen=Listen(admin="127.0.0.1:8000")), "--admin: port 8000 is taken"),
        (Options(listen=Listen(http="0.0.0.0:3000"), grafana=True), "--grafana: its port 3000"),
        (Options(first_port=32767), "no room for 1 servers"),
    ],
)
def test_addresses_that_cannot_be_are_refused(options: Options, message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        make_stack(options, whole_gpus(1))


def test_nothing_to_run_on_is_refused() -> None:
    with pytest.raises(GenerateError, match="nothing to run on"):
        make_stack(Options(), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "127.0.0.1:1"),
        ("10.0.0.5:1", "10.0.0.5:1"),
        ("[2001:db8::1]:1", "[2001:db8::1]:1"),
    ],
)
def test_a_listener_is_reached_from_this_machine(text: str, expected: str) -> None:
    assert local_address(text) == expected


def test_a_unix_socket_is_not_reached_by_others() -> None:
    with pytest.raises(GenerateError, match="needs HOST:PORT"):
        local_address("unix:/run/x.sock")
