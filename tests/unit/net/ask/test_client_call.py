"""Fields that the operator wants on calls of our own."""

from __future__ import annotations

from lb.domain.backend import Address
from lb.net.ask.client_call import authority, marked, with_operator_fields

ADDRESS = Address(host="10.0.0.1", port=8000)


def test_fields_of_the_operator_replace_those_of_the_client() -> None:
    fields = ((b"authorization", b"client"), (b"x-a", b"1"))
    headers = (("Authorization", "operator"), ("X-B", "2"))
    assert with_operator_fields(fields, headers) == (
        (b"x-a", b"1"),
        (b"authorization", b"operator"),
        (b"x-b", b"2"),
    )


def test_host_is_the_authority_and_no_field() -> None:
    headers = (("Host", "triton.internal"),)
    assert with_operator_fields((), headers) == ()
    assert authority(headers, ADDRESS) == b"triton.internal"


def test_the_authority_is_the_address_where_nothing_else_is_said() -> None:
    assert authority((), ADDRESS) == b"10.0.0.1:8000"
    assert authority((), Address(path="/run/t.sock")) == b"localhost"


def test_calls_of_our_own_are_marked_once() -> None:
    own = b"triton-lb-0123456789abcdef"
    fields = ((b"cdn-loop", b"other"), (b"x", b"y"))
    once = marked(fields, own)
    assert once == (*fields, (b"cdn-loop", own))
    assert marked(once, own) == once
    assert marked(fields, b"") == fields
