"""Fields that name the client: appended to what is there."""

from __future__ import annotations

from lb.wire.http1.forwarded import (
    ClientOrigin,
    add_field,
    add_forwarded,
    add_x_forwarded,
    drop_fields,
)

_ORIGIN = ClientOrigin(b"10.0.0.7", b"https")


def test_client_scheme_and_host_are_added() -> None:
    assert add_x_forwarded(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", _ORIGIN, b"a") == (
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.7\r\n"
        b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n\r\n"
    )


def test_earlier_hops_stay_in_front() -> None:
    head = (
        b"GET / HTTP/1.1\r\nx-forwarded-for: 1.1.1.1 \r\nHost: a\r\nX-Forwarded-For: 2.2.2.2\r\n"
        b"X-Forwarded-Proto: http\r\nX-Forwarded-Host: b\r\nX-Forwarded-For:\r\n\r\n"
    )
    assert add_x_forwarded(head, _ORIGIN, b"a") == (
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: b\r\n"
        b"X-Forwarded-For: 1.1.1.1, 2.2.2.2, 10.0.0.7\r\n\r\n"
    )


def test_unknown_host_is_left_out() -> None:
    head = add_x_forwarded(b"GET / HTTP/1.1\r\n\r\n", _ORIGIN, b"")
    assert b"X-Forwarded-Host" not in head
    assert add_forwarded(b"GET / HTTP/1.1\r\n\r\n", _ORIGIN, b"") == (
        b"GET / HTTP/1.1\r\nForwarded: for=10.0.0.7;proto=https\r\n\r\n"
    )


def test_forwarded_element_is_appended_and_ipv6_quoted() -> None:
    head = b"GET / HTTP/1.1\r\nForwarded: for=1.1.1.1\r\n\r\n"
    assert add_forwarded(head, ClientOrigin(b"::1", b"http"), b"a:80") == (
        b'GET / HTTP/1.1\r\nForwarded: for=1.1.1.1, for="[::1]";proto=http;host="a:80"\r\n\r\n'
    )


def test_private_fields_are_dropped_however_they_are_spelled() -> None:
    head = b"GET / HTTP/1.1\r\nX-Who: a\r\nHost: b\r\nx_WHO: c\r\nX-Whom: d\r\n\r\n"
    names = frozenset({b"x-who"})
    assert drop_fields(head, names) == b"GET / HTTP/1.1\r\nHost: b\r\nX-Whom: d\r\n\r\n"
    clean = b"GET /x-who:a HTTP/1.1\r\nHost: b\r\n\r\n"
    assert drop_fields(clean, names) is clean


def test_a_field_is_added_at_the_end() -> None:
    head = b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"
    assert add_field(head, b"X-Who", b"me") == b"GET / HTTP/1.1\r\nHost: b\r\nX-Who: me\r\n\r\n"
