"""Names and ends of certificates, compared with what an X.509 library reads."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from ipaddress import ip_address

import pytest
from cryptography import x509

from lb.wire.tls.certificate import CertificateError, read_certificate
from tests.fakes.certificates import Authority

AUTHORITY = Authority()


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


def test_dns_names_are_read_and_others_are_not() -> None:
    extra = [
        x509.IPAddress(ip_address("10.0.0.1")),
        x509.RFC822Name("a@b.example"),
        x509.UniformResourceIdentifier("https://c.example"),
        x509.DNSName("LAST.example"),
    ]
    pair = AUTHORITY.issue("a.example", "*.b.example", "a.example", extra=extra)
    assert read_certificate(der(pair.certificate)).names == (
        "a.example",
        "*.b.example",
        "last.example",
    )


def test_a_certificate_may_have_no_names() -> None:
    assert read_certificate(der(AUTHORITY.issue().certificate)).names == ()
    assert read_certificate(der(AUTHORITY.pem)).names == ()


@pytest.mark.parametrize(
    "end",
    [
        datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2028, 2, 29, tzinfo=UTC),
        datetime(2028, 3, 1, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2050, 1, 1, tzinfo=UTC),
        datetime(2100, 3, 1, 12, 34, 56, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
)
def test_the_end_is_unix_time(end: datetime) -> None:
    pair = AUTHORITY.issue("a.example", not_after=end)
    assert read_certificate(der(pair.certificate)).not_after == end.timestamp()


def test_what_is_no_certificate_is_refused() -> None:
    whole = der(AUTHORITY.issue("a.example").certificate)
    for bad in (b"", b"\x30\x00", whole[:-1], whole + b"\0", b"\x31" + whole[1:]):
        with pytest.raises(CertificateError):
            read_certificate(bad)
