"""The readers of hellos, certificates and subjects, on any input."""

from __future__ import annotations

import ssl

from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.tls.certificate import CertificateError, read_certificate
from lb.wire.tls.hello import ClientHello, HelloError, HelloReader
from lb.wire.tls.identity import format_subject
from tests.fakes.certificates import Authority
from tests.fakes.hello import hello_with, make_hello

HELLO = make_hello("a.example", ("h2", "http/1.1"))
CERTIFICATE = ssl.PEM_cert_to_DER_cert(
    Authority().issue("a.example", "*.b.example").certificate.decode()
)
MUTATIONS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4)


def mutated(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(changed)] = value
    return bytes(changed)


def test_every_beginning_of_a_hello_is_incomplete() -> None:
    assert [HelloReader().take(HELLO[:at]) for at in range(len(HELLO))] == [None] * len(HELLO)
    assert HelloReader().take(HELLO) == ClientHello("a.example", (b"h2", b"http/1.1"))


@given(st.binary(max_size=200) | MUTATIONS.map(lambda m: mutated(HELLO, m)))
def test_a_hello_is_read_or_refused_but_never_anything_else(data: bytes) -> None:
    try:
        assert isinstance(HelloReader().take(data), ClientHello | None)
    except HelloError:
        pass


@given(st.binary(max_size=100))
def test_extensions_are_read_or_refused(extensions: bytes) -> None:
    try:
        assert isinstance(HelloReader().take(hello_with(extensions)), ClientHello)
    except HelloError:
        pass


@given(st.binary(max_size=200) | MUTATIONS.map(lambda m: mutated(CERTIFICATE, m)))
def test_a_certificate_is_read_or_refused(der: bytes) -> None:
    try:
        read_certificate(der)
    except CertificateError:
        pass


@given(st.text(min_size=1, max_size=16))
def test_a_subject_is_one_line_of_visible_ascii_and_nothing_is_lost(name: str) -> None:
    text = format_subject(((("commonName", name),),))
    assert all(0x20 <= byte < 0x7F for byte in text)
    parsed = x509.Name.from_rfc4514_string(text.decode())
    assert [attribute.value for attribute in parsed] == [name]
