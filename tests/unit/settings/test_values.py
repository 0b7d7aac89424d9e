"""Field types: addresses, header names and values, names, numbers."""

# ruff: noqa: E501 - a case stands on one line
from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from lb.domain.backend import Address
from lb.settings.values import (
    BackendName,
    Count,
    HeaderName,
    HeaderValue,
    Network,
    Number,
    PositiveCount,
    UrlPath,
    address_as_mapping,
    read_address,
    read_target,
)


def accepts(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("triton-0.triton.svc.cluster.local:8001", Address("triton-0.triton.svc.cluster.local", 8001)),
        ("[::1]:0", Address("::1", 0)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
        ("unix:/run/lb.sock", Address(path="/run/lb.sock")),
        (Address("a", 1), Address("a", 1)),
    ],
)  # fmt: skip
def test_addresses_are_read(text: object, address: Address) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("8000", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got '8000'"),
        (8000, "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 8000"),
        (":8000", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got ':8000'"),
        (
            "http://a:1",
            "drop http://: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'http://a:1'",
        ),
        ("ftp://a:1", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'ftp://a:1'"),
        ("a b:1", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'a b:1'"),
        ("-a:1", "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got '-a:1'"),
        ("a:65536", "port must be 0 to 65535, got '65536'"),
        ("a:+1", "port must be 0 to 65535, got '+1'"),
        ("::1:80", "an IPv6 address needs brackets: [::1]:80"),
        ("[x]:80", "'x' is not an IPv6 address"),
        ("[]:80", "'' is not an IPv6 address"),
        (
            "[::1%25lo]:80",
            "'::1%25lo': expected an interface after %, as in fe80::1%eth0",
        ),
        ("unix:", "a Unix socket needs a path: unix:/run/name.sock"),
    ],
)
def test_addresses_say_what_is_wrong_with_them(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        read_address(value)
    assert str(caught.value) == message


def test_only_listeners_may_leave_the_port_to_the_system() -> None:
    assert read_address("a:0").port == 0
    with pytest.raises(ValueError, match=r"^a backend's port must be 1 to 65535, got 0$"):
        read_target("a:0")


def test_an_address_stands_for_a_listener_with_nothing_else() -> None:
    assert address_as_mapping("a:1") == {"address": Address("a", 1)}
    assert address_as_mapping({"address": "a:1"}) == {"address": "a:1"}


@pytest.mark.parametrize("name", ["authorization", "X-Api-Key", "a.b_c!"])
def test_header_names_are_tokens(name: str) -> None:
    assert accepts(HeaderName, name)


@pytest.mark.parametrize("name", ["", "a b", ":path", "a\n", "ä", "a:", "x" * 257])
def test_other_header_names_are_refused(name: str) -> None:
    assert not accepts(HeaderName, name)


@pytest.mark.parametrize("value", ["", "x", "Bearer a b", "a\tb"])
def test_header_values_are_one_visible_line(value: str) -> None:
    assert accepts(HeaderValue, value)


@pytest.mark.parametrize("value", [" a", "a ", "a\r\nb: c", "a\n", "a\0", "ä"])
def test_other_header_values_are_refused_without_showing_them(value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(HeaderValue).validate_python(value)
    message = str(caught.value.errors()[0].get("ctx", {})["error"])
    assert message == "a header value is one line of visible ASCII, without spaces around it"


@pytest.mark.parametrize("name", ["gpu-0", "10.0.0.1:8000", "GPU 0", "größe"])
def test_backend_names_are_printable(name: str) -> None:
    assert accepts(BackendName, name)


@pytest.mark.parametrize("name", ["", ".", "..", " a", "a/b", "a\n", "a\0b", "x" * 254])
def test_other_backend_names_are_refused(name: str) -> None:
    assert not accepts(BackendName, name)


@pytest.mark.parametrize("path", ["/", "/v2/health/ready", "/a?b=c"])
def test_url_paths_start_with_a_slash(path: str) -> None:
    assert accepts(UrlPath, path)


@pytest.mark.parametrize("path", ["", "a", "/a b", "/a\r\nb", "/ä"])
def test_other_url_paths_are_refused(path: str) -> None:
    assert not accepts(UrlPath, path)


@pytest.mark.parametrize("text", ["192.0.2.0/24", "192.0.2.1", "2001:db8::/32", "::1", "0.0.0.0/0"])
def test_networks_and_single_addresses_are_read(text: str) -> None:
    assert accepts(Network, text)
    assert str(TypeAdapter(Network).validate_python(text)).startswith(text)


@pytest.mark.parametrize(
    "value", ["", "a", "192.0.2.1/24", "192.0.2.0/33", 5, 0xC0000200, b"\xc0\0\2\0", None]
)
def test_what_is_no_network_is_refused(value: object) -> None:
    assert not accepts(Network, value)


def test_numbers_are_never_booleans_infinite_or_below_their_bound() -> None:
    assert [accepts(Count, value) for value in (0, "7", True, -1, 1.5)] == [True, True] + [
        False
    ] * 3
    assert [accepts(PositiveCount, value) for value in (1, 0)] == [True, False]
    assert [accepts(Number, value) for value in (0.5, 2, False, "inf", "x")] == [True, True] + [
        False
    ] * 3
