"""Heads in pieces: complete, early refusal, bounds."""

from __future__ import annotations

import pytest

from lb.wire.http1.collect import HeadCollector, check_size
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits

_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
_LIMITS = HeadLimits(head_bytes=100, line_bytes=40, fields=5)


@pytest.mark.parametrize("cut", range(len(_HEAD) + 4))
def test_head_is_complete_whatever_the_cut(cut: int) -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    wire = _HEAD + b"body"
    first = collector.feed(wire[:cut]) if cut else None
    if first is None:
        assert collector.feed(wire[cut:]) == _HEAD
        assert collector.rest == b"body"
    else:
        assert first == _HEAD
        assert collector.rest == wire[len(_HEAD) : cut]
    assert len(collector) == 0


def test_a_part_of_the_next_head_leaves_nothing_of_what_followed_the_last_one() -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    collector.feed(_HEAD[:9])
    assert collector.feed(_HEAD[9:] + b"body") == _HEAD
    assert collector.feed(b"GET / H") is None
    assert collector.rest == b""


@pytest.mark.parametrize("skipped", [0, 1])
def test_one_empty_line_before_a_head_is_skipped(skipped: int) -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    for byte in b"\r\n" * skipped + _HEAD[:-1]:
        assert collector.feed(bytes((byte,))) is None
    assert collector.feed(b"\n") == _HEAD


def test_skipped_empty_line_leaves_nothing_collected() -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    collector.feed(b"\r\n")
    assert len(collector) == 0


def test_second_empty_line_is_part_of_the_head() -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    assert collector.feed(b"\r\n\r\n" + _HEAD) == b"\r\n" + _HEAD


@pytest.mark.parametrize("text", [b"\x16", b"GET /\n", b"GET /\rX", b"a\x7f", b"GET \x00"])
def test_illegal_text_is_refused_at_once(text: bytes) -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    for byte in text[:-1]:
        assert collector.feed(bytes((byte,))) is None
    with pytest.raises(MessageError) as caught:
        collector.feed(text[-1:])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET /" + b"a" * 38, 414),
        (b"G" * 43, 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 82, 431),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_endless_heads_are_refused(text: bytes, status: int, at_once: bool) -> None:
    collector = HeadCollector(_LIMITS, of_request=True)
    for byte in b"" if at_once else text[:-1]:
        # A start line may be followed by its CRLF, so two more bytes are waited for.
        if len(collector) < 40:
            collector.feed(bytes((byte,)))
    with pytest.raises(MessageError) as caught:
        collector.feed(text[len(collector) :])
    assert caught.value.status == status


def test_empty_line_before_a_response_is_part_of_it() -> None:
    collector = HeadCollector(_LIMITS, of_request=False)
    assert collector.feed(b"HTTP/1.1 200") is None
    assert collector.feed(b" OK\r\n\r\n") == b"HTTP/1.1 200 OK\r\n\r\n"
    assert collector.feed(b"\r\nHTTP/1.1 200 OK\r\n\r\n") == b"\r\nHTTP/1.1 200 OK\r\n\r\n"


def test_size_within_the_limits_passes() -> None:
    check_size(b"a" * 38 + b"\r\n" + b"b" * 60, _LIMITS)
    with pytest.raises(MessageError):
        check_size(b"a" * 38 + b"\r\n" + b"b" * 61, _LIMITS)


@pytest.mark.parametrize("text", [b"2", b"HTTP/2", b"\r", b"http"])
def test_what_cannot_become_a_response_is_refused_at_once(text: bytes) -> None:
    collector = HeadCollector(_LIMITS, of_request=False)
    with pytest.raises(MessageError):
        collector.feed(text)
