"""Names that stand for other names."""

from __future__ import annotations

from lb.wire.field_names import ACTED_UPON, DROPPED, REDIRECT, TWINS, twins


def test_every_hyphen_may_be_an_underscore() -> None:
    assert twins(b"a-b-c") == {b"a_b-c", b"a-b_c", b"a_b_c"}
    assert twins(b"host") == frozenset()


def test_twins_of_fields_about_framing_and_origin_are_dropped() -> None:
    assert {b"content_length", b"transfer_encoding", b"x_forwarded_for", b"x-forwarded_for"} < TWINS
    assert {b"inference_header_content_length", b"proxy_connection", b"keep_alive"} < TWINS


def test_no_name_with_hyphens_alone_is_dropped_but_the_redirect() -> None:
    assert {name for name in DROPPED if b"_" not in name} == {REDIRECT}
    assert not ACTED_UPON & TWINS
    assert b"triton_grpc_error" not in DROPPED, "metadata that Triton's own clients send"
