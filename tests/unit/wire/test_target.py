"""Request targets above ASCII."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.target import ORIGIN_FORM, escaped
from tests.fakes.work import instructions

LEGAL = re.compile(ORIGIN_FORM)


@given(st.binary(max_size=12).map(b"/".__add__))
def test_a_target_is_visible_ascii_and_utf_8(target: bytes) -> None:
    try:
        text = target.decode()
    except UnicodeDecodeError:
        is_legal = False
    else:
        is_legal = not any(char <= " " or char in "\x7f#" for char in text)
    assert (LEGAL.fullmatch(target) is not None) is is_legal


@given(st.text(max_size=8).map(lambda text: text.encode(errors="ignore")))
def test_every_character_above_ascii_is_part_of_a_target(text: bytes) -> None:
    visible = bytes(byte for byte in text if byte >= 0x80)
    assert LEGAL.fullmatch(b"/" + visible) is not None


@pytest.mark.parametrize(
    ("target", "sent"), [("/a?b=%20", b"/a?b=%20"), ("/ä?€", b"/%C3%A4?%E2%82%AC")]
)
def test_what_is_above_ascii_is_escaped(target: str, sent: bytes) -> None:
    assert escaped(target.encode()) == sent


def test_a_long_target_takes_no_more_steps_than_a_short_one() -> None:
    umlaut = "\u00e4".encode()
    assert escaped(b"/a" + umlaut) == b"/a%C3%A4"
    long = umlaut * 3500
    short = instructions(lambda: escaped(umlaut))
    assert instructions(lambda: escaped(long)) == short
