"""Addresses and the record of a backend."""

from __future__ import annotations

import pytest

from lb.domain.backend import Address, AppProtocol, Backend, Histogram, parse_address
from tests.fakes.backends import HTTP_ADDRESS, make_backend, make_spec


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address(host="127.0.0.1", port=8000)),
        ("triton-0.local:0", Address(host="triton-0.local", port=0)),
        ("[::1]:65535", Address(host="::1", port=65535)),
        ("unix:/run/lb.sock", Address(path="/run/lb.sock")),
    ],
)
def test_an_address_is_written_as_it_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected HOST:PORT"),
        ("host", "expected HOST:PORT"),
        (":8000", "expected HOST:PORT"),
        ("host:", "port must be"),
        ("host:http", "port must be"),
        ("host:-1", "port must be"),
        ("host:65536", "port must be"),
        ("host:\u0661", "port must be"),
        ("host:8\u00b2", "port must be"),
        ("::1:8000", "needs brackets"),
        ("unix:", "needs a path"),
    ],
)
def test_other_texts_are_refused_with_what_is_wrong(text: str, message: str) -> None:
    """No port or host, a port that is no number or out of range, bare IPv6, an empty path."""
    with pytest.raises(ValueError, match=message):
        parse_address(text)


def test_labels_are_those_of_the_metrics() -> None:
    assert [protocol.label for protocol in AppProtocol] == ["http", "grpc"]


def test_spec_gives_the_address_of_a_protocol() -> None:
    spec = make_spec(grpc=None)
    assert spec.address(AppProtocol.HTTP) is HTTP_ADDRESS
    assert spec.address(AppProtocol.GRPC) is None


def test_backend_counts_only_ports_that_it_has() -> None:
    backend = Backend(make_spec("a", grpc=None))
    assert backend.port(AppProtocol.HTTP) is backend.ports[AppProtocol.HTTP]
    with pytest.raises(LookupError, match="a has no grpc port"):
        backend.port(AppProtocol.GRPC)


@pytest.mark.parametrize(
    ("in_flight", "limit", "has_room"),
    [(0, 0, True), (1000, 0, True), (0, 1, True), (1, 1, False), (2, 1, False)],
)
def test_room_is_below_the_limit(in_flight: int, limit: int, has_room: bool) -> None:
    backend = make_backend(in_flight=in_flight, max_in_flight=limit)
    assert backend.has_room is has_room


def test_a_changed_spec_keeps_the_counters() -> None:
    backend = make_backend("a", in_flight=3)
    port = backend.port(AppProtocol.HTTP)
    backend.apply(make_spec("a", weight=4.0, max_in_flight=9))
    assert backend.port(AppProtocol.HTTP) is port
    assert (backend.in_flight, backend.inverse_weight, backend.max_in_flight) == (3, 0.25, 9)


def test_backend_shows_its_name_and_load() -> None:
    assert repr(make_backend("a", in_flight=3)) == "<Backend a in_flight=3>"


def test_a_histogram_begins_empty_with_a_bucket_above_all_bounds() -> None:
    histogram = Histogram()
    assert sum(histogram.counts) == 0
    assert len(histogram.counts) == 17


def test_only_a_share_of_its_weight_counts_while_it_starts_slowly() -> None:
    backend = make_backend(weight=2.0)
    backend.set_share(0.25)
    assert (backend.share, backend.inverse_weight) == (0.25, 2.0)
    backend.apply(make_spec(weight=4.0))
    assert backend.inverse_weight == 1.0
    backend.set_share(1.0)
    assert backend.inverse_weight == 0.25
