"""Subjects as text: short names, order, and nothing that could end a line."""

from __future__ import annotations

import pytest

from lb.wire.tls.identity import Subject, format_subject


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ((), b""),
        (((("countryName", "DE"),), (("commonName", "a"),)), b"CN=a,C=DE"),
        (((("commonName", "a"), ("userId", "7")),), b"CN=a+UID=7"),
        (((("emailAddress", "a@b"),),), b"emailAddress=a@b"),
        (((("commonName", 'a,b+c"d;e<f>g\\h'),),), rb"CN=a\,b\+c\"d\;e\<f\>g\\h"),
        (((("commonName", " a b "),),), rb"CN=\ a b\ "),
        (((("commonName", "#1#"),),), rb"CN=\#1#"),
        (((("commonName", "a\r\nX: y\0\x7f"),),), rb"CN=a\0D\0AX: y\00\7F"),
        (((("commonName", "ü€"),),), rb"CN=\C3\BC\E2\82\AC"),
    ],
)
def test_subject_is_one_line_of_visible_ascii(subject: Subject, text: bytes) -> None:
    assert format_subject(subject) == text
