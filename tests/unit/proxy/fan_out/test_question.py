"""A reply is good by what it says."""

from __future__ import annotations

from lb.proxy.fan_out.question import Reply


def test_a_reply_is_empty_json_of_nobody_unless_told() -> None:
    reply = Reply(status=200)
    assert (reply.body, reply.detail, reply.reason, reply.backends) == (b"", "", None, ())
    assert reply.content_type == b"application/json"
