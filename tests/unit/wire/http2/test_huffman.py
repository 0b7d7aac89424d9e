"""Huffman coding of RFC 7541, by its own examples and by what it forbids."""

from __future__ import annotations

import pytest

from lb.wire.http2.huffman import HuffmanError, decode


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("", b""),
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
        ("a8eb10649cbf", b"no-cache"),
        ("25a849e95ba97d7f", b"custom-key"),
        ("25a849e95bb8e8b4bf", b"custom-value"),
        ("aec3771a4b", b"private"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    ],
)
def test_the_examples_of_the_rfc(coded: str, text: bytes) -> None:
    """RFC 7541 C.4 and C.6."""
    assert decode(bytes.fromhex(coded)) == text
    assert decode(bytes.fromhex(coded)) == text, "from the rows that the first time made"


@pytest.mark.parametrize(
    "coded",
    ["ff", "a8eb10649cbfff", "00", "18", "ffffffff", "3fffffff", "fffffffc"],
    ids=[
        "eight bits of padding",
        "more than seven bits of padding",
        "padding of zeros",
        "padding that does not end in ones",
        "the end of string",
        "the end of string behind a character",
        "the end of string and two bits",
    ],
)
def test_what_stands_for_no_string(coded: str) -> None:
    for _ in range(2):
        with pytest.raises(HuffmanError):
            decode(bytes.fromhex(coded))
