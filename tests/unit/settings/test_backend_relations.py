"""What the configuration's own rules use of these is tested there, see test_relations."""

from __future__ import annotations

import pytest

from lb.domain.backend import Address
from lb.settings.backend_relations import (
    address_at,
    check_backend_tls,
    check_backends,
    check_loops,
    entries,
    mapping,
    overlap,
)


def test_what_is_not_there_is_empty() -> None:
    assert mapping(7) == {}
    assert entries([{"a": 1}, 7]) == [{"a": 1}, {}]
    assert entries(7) == []
    assert address_at("?") is None


def test_two_backends_cannot_have_one_name() -> None:
    found = list(check_backends([{"http": "a:1"}, {"name": "a:1", "grpc": "b:1"}]))
    assert found == [(("backends", 1, "name"), "'a:1' is already the name of backends[0]")]


def test_a_backend_cannot_be_where_we_listen() -> None:
    ours = {"listen.http": Address("127.0.0.1", 8000)}
    found = list(check_loops(ours, [{"http": "10.0.0.1:8000"}, {"grpc": "localhost:8000"}]))
    assert found == [(("backends", 1, "grpc"), "localhost:8000 is our own listener listen.http")]


def test_paths_of_tls_begin_where_the_backend_stands() -> None:
    entry = {"http": "unix:/run/a", "tls": {"certificate": "c"}}
    assert list(check_backend_tls(("x",), entry)) == [
        (("x", "tls", "certificate"), "needs key, too"),
        (("x", "tls"), "needs server_name, since unix:/run/a has no host"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (Address("0.0.0.0", 1), Address("127.0.0.1", 1), True),
        (Address("0.0.0.0", 1), Address("127.0.0.2", 1), True),
        (Address("::", 1), Address("::1", 1), True),
        (Address("0.0.0.0", 1), Address("10.0.0.1", 1), False),
        (Address("0.0.0.0", 1), Address("triton", 1), False),
        (Address("127.0.0.1", 1), Address("127.0.0.1", 2), False),
        (Address(path="/a"), Address(path="/a"), True),
    ],
)
def test_addresses_overlap_where_one_would_take_what_is_for_the_other(
    one: Address, other: Address, is_same: bool
) -> None:
    assert overlap(one, other) is is_same
