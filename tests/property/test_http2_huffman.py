"""Our table of bytes agrees with the library's, which goes by half bytes, on good and bad input."""

from __future__ import annotations

from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.wire.http2.huffman import HuffmanError, decode

_ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.binary(max_size=300))
@example(bytes(range(256)))
@settings(max_examples=150, deadline=None)
def test_what_was_encoded_comes_back(text: bytes) -> None:
    assert decode(_ENCODER.encode(text)) == text


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda text, cut, tail: _ENCODER.encode(text)[cut:] + tail,
        st.binary(max_size=30),
        st.integers(-3, 3),
        st.sampled_from([b"", b"\xff", b"\xff\xff\xff\xff", b"\0"]),
    )
)
@settings(max_examples=400, deadline=None)
def test_anything_is_decoded_as_the_library_does_it(data: bytes) -> None:
    try:
        expected: bytes | None = bytes(decode_huffman(data))
    except HPACKDecodingError:
        expected = None
    try:
        got: bytes | None = decode(data)
    except HuffmanError:
        got = None
    assert got == expected
