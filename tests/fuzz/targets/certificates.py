"""Reading a certificate, against the library that makes them."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta

from cryptography import x509

from lb.wire.tls.certificate import Certificate, CertificateError, read_certificate
from tests.fuzz.target import Target, stored_seeds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check(data: bytes) -> None:
    try:
        ours = read_certificate(data)
    except CertificateError:
        return
    assert sum(map(len, ours.names)) <= len(data)
    assert all(name.isascii() for name in ours.names)
    theirs = _by_library(data)
    if theirs is not None:
        assert ours == theirs


def _by_library(data: bytes) -> Certificate | None:
    """None where it refuses, as it does whatever DER does not allow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            certificate = x509.load_der_x509_certificate(data)
            ends = certificate.not_valid_after_utc
            extensions = certificate.extensions
        except (ValueError, x509.InvalidVersion, x509.DuplicateExtension):
            return None
    names: list[str] = []
    for each in extensions:
        if isinstance(each.value, x509.SubjectAlternativeName):
            names = each.value.get_values_for_type(x509.DNSName)
    lower = tuple(dict.fromkeys(name.lower() for name in names))
    return Certificate(lower, (ends - _EPOCH) // timedelta(seconds=1))


TARGETS = (
    Target(
        "tls_certificate",
        _check,
        stored_seeds("tls_certificate"),
        (b"\x30\x82", b"\x30\x80", b"\x82\x01a", b"\x06\x03\x55\x1d\x11", b"\x17\x0d", b"\x84\xff"),
    ),
)
