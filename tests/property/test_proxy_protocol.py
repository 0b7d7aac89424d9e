"""PROXY headers: the same as the plain reference, however they are split."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from lb.wire.proxy_protocol import (
    BINARY_LIMIT,
    TEXT_LIMIT,
    ProxyHeader,
    ProxyHeaderError,
    read_proxy_header,
)
from tests.fakes.proxy_headers import LOCAL, SIGNATURE, binary_header, framed, text_header
from tests.reference.proxy_header import reference

_ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
_PORTS = st.integers(0, 65535)
_WORDS = st.sampled_from(
    ["PROXY", "TCP4", "TCP6", "UNKNOWN", "1.2.3.4", "::1", "::ffff:1.2.3.4", "0", "65535", "x", ""]
)
_GOOD = st.one_of(
    st.builds(text_header, _ADDRESSES, _PORTS),
    st.builds(binary_header, _ADDRESSES, _PORTS),
    st.just(LOCAL),
    st.just(b"PROXY UNKNOWN\r\n"),
)
_NEARLY = st.one_of(
    st.lists(_WORDS, max_size=7).map(lambda words: " ".join(words).encode() + b"\r\n"),
    st.builds(
        framed,
        st.sampled_from([0x20, 0x21, 0x22, 0x11]),
        st.sampled_from([0x00, 0x11, 0x21, 0x31, 0x12, 0xFF]),
        st.binary(max_size=300),
    ),
    st.binary(max_size=300).map(lambda data: SIGNATURE + data),
    st.binary(max_size=20),
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(_GOOD))
    data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def _read(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_proxy_header(data)
    except ProxyHeaderError:
        return "refused"


@given(st.one_of(_GOOD, _NEARLY, _damaged()), st.binary(max_size=40))
@example(framed(0x20, 0x00, b"xyz"), b"")
def test_it_agrees_with_the_reference(data: bytes, rest: bytes) -> None:
    found = _read(data + rest)
    expected = reference(data + rest)
    if isinstance(found, ProxyHeader):
        assert (found.size, found.is_local, found.source) == expected
    else:
        assert expected is None


@given(st.one_of(_GOOD, _NEARLY, _damaged()))
def test_every_split_gives_the_same(data: bytes) -> None:
    whole = _read(data)
    steps = [_read(data[:size]) for size in range(len(data) + 1)]
    decided = next((step for step in steps if step is not None), None)
    assert decided == whole


@given(st.sampled_from([b"PROXY ", SIGNATURE]), st.binary())
def test_it_never_waits_beyond_its_limits(start: bytes, data: bytes) -> None:
    filler = b"x" * TEXT_LIMIT if start == b"PROXY " else bytes(16 + BINARY_LIMIT)
    assert _read(start + data + filler) is not None
