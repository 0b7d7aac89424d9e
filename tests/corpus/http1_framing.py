"""Where one request ends and the next begins: lengths, transfer codings, chunks."""

from __future__ import annotations

from typing import Final

from tests.corpus.http1_rows import (
    CL5,
    HELLO,
    HOST,
    SECOND,
    SMUGGLED,
    TE,
    Row,
    chunked,
    get,
    post,
)

_BOTH: Final = "RFC 9112 6.1, 11.2"
_CODING: Final = "RFC 9112 6.1, 7"
_LENGTH: Final = "RFC 9110 8.6, RFC 9112 6.3"
_CHUNK: Final = "RFC 9112 7.1"
_EXTENSION: Final = "RFC 9112 7.1.1"
_TRAILER: Final = "RFC 9112 7.1.2, RFC 9110 6.5.1"
_OWS: Final = "RFC 9110 5.5, 5.6.3"
_INTEGER: Final = "RFC 9112 6.3; HTTP Garden: lengths read by int()"
_TWIN: Final = "HTTP Garden; Http11Probe: CGI spelling of a framing field"
_LAST: Final = b"0\r\n\r\n"
_SMUGGLED_CHUNK: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)


def _both(id: str, what: str, fields: bytes, body: bytes, line: bytes = b"POST / HTTP/1.1") -> Row:
    return Row(id, what, post(fields, body, line), 400, _BOTH)


_CL6: Final = b"Content-Length: 6\r\n"
BOTH: Final = (
    _both("CLTE-1", "both", _CL6 + TE, b"0\r\n\r\nG"),
    _both("CLTE-2", "a request behind the last chunk", b"Content-Length: 44\r\n" + TE,
          _LAST + SMUGGLED),
    _both("CLTE-3", "equal lengths", CL5 + TE, _LAST),
    _both("CLTE-4", "length 0", b"Content-Length: 0\r\n" + TE, _SMUGGLED_CHUNK),
    _both("CLTE-5", "length with plus", b"Content-Length: +6\r\n" + TE, _LAST + SMUGGLED),
    _both("CLTE-6", "length not a number", b"Content-Length: 6x\r\n" + TE, _LAST + SMUGGLED),
    _both("CLTE-7", "last to close", CL5 + TE + b"Connection: close\r\n", _LAST + SECOND),
    _both("CLTE-8", "field between", CL5 + b"X: y\r\n" + TE, _LAST + SMUGGLED),
    _both("CLTE-9", "GET", CL5 + TE, _LAST + SMUGGLED, b"GET / HTTP/1.1"),
    _both("CLTE-10", "HEAD", CL5 + TE, _LAST + SMUGGLED, b"HEAD / HTTP/1.1"),
    _both("CLTE-11", "HTTP/1.0", CL5 + TE, _LAST + SMUGGLED, b"POST / HTTP/1.0"),
    _both("CLTE-12", "coding in odd case", CL5 + b"tRANSFER-eNCODING: cHUNKED\r\n", _LAST),
    _both("TECL-1", "coding first", TE + b"Content-Length: 4\r\n",
          b"5c\r\nGPOST / HTTP/1.1\r\nHost: smuggled\r\n\r\n0\r\n\r\n"),
    _both("TECL-2", "coding first, long length", TE + b"Content-Length: 30\r\n", _LAST + b"X"),
    _both("TECL-3", "coding first, a request in the chunk", TE + b"Content-Length: 4\r\n",
          _SMUGGLED_CHUNK),
    _both("TECL-4", "coding first, empty length", TE + b"Content-Length:\r\n", _LAST + SMUGGLED),
    _both("TECL-5", "length, coding, length", CL5 + TE + CL5, _LAST + SMUGGLED),
)  # fmt: skip


def _coding(id: str, what: str, value: bytes, status: int = 400, **more: object) -> Row:
    wire = post(b"Transfer-Encoding:" + value + b"\r\n", _LAST + SMUGGLED)
    return Row(id, what, wire, status, _CODING, **more)  # type: ignore[arg-type]


def _coding_and_length(id: str, what: str, value: bytes) -> Row:
    return Row(id, what, post(b"Transfer-Encoding:" + value + b"\r\n" + CL5, HELLO), 400, _BOTH)


CODINGS: Final = (
    Row("TETE-1", "two lines", post(TE + TE, _LAST), 400, _CODING),
    Row("TETE-2", "two lines, odd case", post(TE + b"tRANSFER-eNCODING: CHUNKED\r\n", _LAST), 400,
        _CODING),
    _coding("TETE-3", "twice", b" chunked, chunked"),
    Row("TETE-4", "gzip line first", post(b"Transfer-Encoding: gzip\r\n" + TE, _LAST), 501,
        _CODING),
    _coding("TETE-5", "other coding first", b" gzip, chunked", 501),
    _coding("TETE-6", "chunked is not last", b" chunked, gzip", 501),
    _coding("TETE-7", "identity last", b" chunked, identity", 501),
    _coding("TETE-8", "identity first", b" identity, chunked", 501),
    Row("TETE-9", "second line unknown",
        post(TE + b"Transfer-Encoding: x\r\n", _LAST + SMUGGLED), 400, _CODING),
    Row("TETE-10", "second line identity, with a length",
        post(TE + b"Transfer-Encoding: identity\r\n" + CL5, _LAST + SMUGGLED), 400, _CODING),
    Row("TETE-11", "second line empty", post(TE + b"Transfer-Encoding:\r\n", _LAST), 400, _CODING),
    _coding("TE-1", "unknown coding", b" xchunked", 501),
    Row("TE-2", "identity", post(b"Transfer-Encoding: identity\r\n" + CL5, HELLO), 501, _CODING),
    _coding("TE-3", "leading comma", b" ,chunked"),
    _coding("TE-4", "trailing comma", b" chunked,"),
    _coding("TE-5", "empty", b" "),
    _coding_and_length("TE-6", "NUL behind", b" chunked\x00"),
    _coding("TE-7", "vertical tab before", b" \x0bchunked"),
    _coding("TE-8", "quoted", b' "chunked"'),
    _coding("TE-9", "no-break space behind", b" chunked\xa0"),
    Row("TE-10", "space before colon", post(b"Transfer-Encoding : chunked\r\n" + CL5, _LAST), 400,
        "RFC 9112 5.1"),
    _coding("TE-11", "folded", b"\r\n chunked"),
    _coding_and_length("TE-12", "parameter", b" chunked;ext=1"),
    Row("TE-13", "tabs around", post(b"Transfer-Encoding:\tchunked\t \r\n",
        b"5\r\nhello\r\n" + _LAST), 200, _OWS, 1, body=HELLO,
        holds=(b"Transfer-Encoding: chunked",)),
    Row("TE-14", "in HTTP/1.0", get(HOST + TE, b"POST / HTTP/1.0") + _LAST, 400,
        "RFC 9112 6.1"),
    Row("TE-15", "underscore", post(b"Transfer_Encoding: chunked\r\n" + CL5, HELLO), 200, _TWIN, 1,
        body=HELLO, lacks=(b"transfer_encoding", b"transfer-encoding")),
    Row("TE-16", "upper case", post(b"Transfer-Encoding: CHUNKED\r\n", b"5\r\nhello\r\n" + _LAST),
        200, _CODING, 1, body=HELLO, holds=(b"Transfer-Encoding: chunked",)),
    _coding("TE-17", "form feed before", b" \x0cchunked"),
    _coding("TE-18", "next line behind", b" chunked\x85"),
    _coding("TE-19", "CR behind", b" chunked\r"),
    _coding("TE-20", "LF before", b"\nchunked"),
    Row("TE-21", "bare CR before the name", post(b"X: y\rTransfer-Encoding: chunked\r\n", _LAST),
        400, "RFC 9112 2.2"),
    Row("TE-22", "bare LF before the name",
        post(b"X: y\nTransfer-Encoding: chunked\r\n" + CL5, HELLO), 400, "RFC 9112 2.2"),
    Row("TE-23", "NUL in the name", post(b"Transfer-Encoding\x00: chunked\r\n" + CL5, HELLO), 400,
        "RFC 9110 5.1, 5.6.2"),
    Row("TE-24", "fold before the name", post(b"X: y\r\n Transfer-Encoding: chunked\r\n", _LAST),
        400, "RFC 9112 5.2"),
    _coding("TE-25", "two words", b" chunked identity"),
    _coding("TE-26", "semicolon behind", b" chunked;"),
    _coding("TE-27", "hidden in a word", b" ch\x00unked"),
    _coding("TE-28", "backslash", b" chunk\\ed"),
    Row("TE-29", "of GET", get(HOST + TE) + b"5\r\nhello\r\n" + _LAST + SECOND, 200,
        "RFC 9110 9.3.1", 2, (200,), body=HELLO),
    Row("TE-30", "underscore beside the real one", post(TE + b"Transfer_Encoding: gzip\r\n",
        b"5\r\nhello\r\n" + _LAST), 200, _TWIN, 1, body=HELLO, lacks=(b"transfer_encoding",)),
)  # fmt: skip


def _length(id: str, what: str, value: bytes, body: bytes = HELLO + SMUGGLED) -> Row:
    return Row(id, what, post(b"Content-Length:" + value + b"\r\n", body), 400, _LENGTH)


def _legal_length(id: str, what: str, value: bytes, body: bytes, canonical: bytes) -> Row:
    wire = post(b"Content-Length:" + value + b"\r\n", body)
    holds = (b"Content-Length: " + canonical,)
    return Row(id, what, wire, 200, _LENGTH, 1, body=body, holds=holds)


LENGTHS: Final = (
    Row("CL-1", "two", post(CL5 + b"Content-Length: 6\r\n", b"helloX"), 400, _LENGTH),
    Row("CL-2", "twice the same", post(CL5 + CL5, HELLO), 400, _LENGTH),
    _length("CL-3", "list", b" 5, 6", b"helloX"),
    _length("CL-4", "list of equals", b" 5, 5"),
    _length("CL-5", "plus", b" +5"),
    _length("CL-6", "minus", b" -5"),
    _length("CL-7", "hexadecimal", b" 0x5"),
    _length("CL-8", "underscore", b" 1_0"),
    _length("CL-9", "inner space", b" 5 5"),
    _length("CL-10", "empty", b""),
    Row("CL-11", "empty, then real", post(b"Content-Length: \r\nContent-Length: 43\r\n",
        b"POST /evil HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), 400, "CVE-2023-40225"),
    _length("CL-12", "fraction", b" 5.0"),
    _length("CL-13", "2^64+5", b" 18446744073709551621"),
    _length("CL-14", "Arabic digit", b" \xd9\xa5"),
    _length("CL-15", "vertical tab", b" 5\x0b"),
    _length("CL-16", "next line", b" 5\x85"),
    _legal_length("CL-17", "leading zero", b" 05", HELLO, b"5"),
    _legal_length("CL-18", "white space around", b" \t 5 \t", HELLO, b"5"),
    Row("CL-19", "too short", post(b"Content-Length: 10\r\n", HELLO), 400, "RFC 9112 8",
        half_close=True, late=True),
    _length("CL-20", "twenty digits", b" 00000000000000000005"),
    _legal_length("CL-21", "nineteen digits", b" 0000000000000000005", HELLO, b"5"),
    _length("CL-22", "2^63", b" 9223372036854775808"),
    Row("CL-23", "2^63-1, and then nothing", post(b"Content-Length: 9223372036854775807\r\n",
        HELLO), 400, _LENGTH, half_close=True, late=True),
    _length("CL-24", "octal", b" 0o5"),
    _length("CL-25", "exponent", b" 5e0"),
    _length("CL-26", "no number", b" five"),
    _length("CL-27", "minus zero", b" -0", SMUGGLED),
    _legal_length("CL-28", "two zeros", b" 00", b"", b"0"),
    _length("CL-29", "trailing comma", b" 5,"),
    _length("CL-30", "leading comma", b" ,5"),
    _length("CL-31", "quoted", b' "5"'),
    _length("CL-32", "NUL behind", b" 5\x00"),
    _length("CL-33", "folded", b"\r\n 5"),
    _length("CL-34", "no-break space", b" 5\xa0"),
    _length("CL-35", "three equal", b" 5, 5, 5"),
    _length("CL-36", "semicolon", b" 5;a=b"),
    _length("CL-37", "wide digit", b" \xef\xbc\x95"),
    Row("CL-38", "space before colon", post(b"Content-Length : 5\r\n", HELLO), 400,
        "RFC 9112 5.1"),
    Row("CL-39", "space before colon beside a real one",
        post(b"Content-Length: 5\r\nContent-Length : 3\r\n", HELLO), 400, "RFC 9112 5.1"),
    Row("CL-40", "underscore beside a real one", post(CL5 + b"Content_Length: 99\r\n", HELLO), 200,
        _TWIN, 1, body=HELLO, holds=(b"Content-Length: 5",), lacks=(b"content_length",)),
    Row("CL-41", "tab in the name", post(CL5 + b"Content\tLength: 99\r\n", HELLO), 400,
        "RFC 9110 5.1"),
    Row("CL-42", "0 and a request behind", post(b"Content-Length: 0\r\n") + SECOND, 200, _LENGTH,
        2, (200,), body=b""),
    Row("CL-43", "0 and garbage behind", post(b"Content-Length: 0\r\n", b"\x00") + SMUGGLED, 200,
        _LENGTH, 1, (400,), body=b""),
    Row("CL-44", "body one byte longer", post(CL5, b"hello ") + SMUGGLED, 200, _LENGTH, 1, (400,),
        body=HELLO),
    Row("CL-45", "none of POST", post(b"", SECOND), 200, "RFC 9112 6.3", 2, (200,), body=b""),
    Row("CL-46", "decimal, not octal", post(b"Content-Length: 010\r\n", b"0123456789"), 200,
        _INTEGER, 1, body=b"0123456789", holds=(b"Content-Length: 10",)),
    Row("CL-47", "of HTTP/1.0, too short",
        post(b"Content-Length: 10\r\n", HELLO, b"POST / HTTP/1.0"), 400, "RFC 9112 8",
        half_close=True, late=True),
)  # fmt: skip


def _bad_chunk(id: str, what: str, body: bytes, source: str = _CHUNK, status: int = 400) -> Row:
    return Row(id, what, chunked(body), status, source, late=True)


def _good_chunk(id: str, what: str, body: bytes, payload: bytes = HELLO,
                source: str = _CHUNK) -> Row:  # fmt: skip
    # A chunk extension or a trailer that was passed on would be in the body or in the framing,
    # both of which the observer reads.
    return Row(id, what, chunked(body), 200, source, 1, body=payload)


def _fields(count: int) -> bytes:
    return b"".join(b"x%d: y\r\n" % number for number in range(count))


CHUNKS: Final = (
    _good_chunk("CK-1", "plain", b"5\r\nhello\r\n0\r\n\r\n"),
    _good_chunk("CK-2", "extension", b"5;a=b\r\nhello\r\n0\r\n\r\n", source=_EXTENSION),
    _bad_chunk("CK-3", "endless extension", b"5;" + b"a" * 300 + b"\r\nhello\r\n0\r\n\r\n",
               _EXTENSION),
    _bad_chunk("CK-4", "CR in extension", b"2\r\r;a\r\n02\r\n41\r\n0\r\n\r\n" + SMUGGLED,
               _EXTENSION),
    _bad_chunk("CK-5", "LF in extension", b"5;a\nb\r\nhello\r\n0\r\n\r\n", _EXTENSION),
    _bad_chunk("CK-6", "0x", b"0x5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-7", "plus", b"+5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-8", "minus", b"-5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-9", "underscore", b"0_5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-10", "leading space", b" 5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-11", "trailing space", b"5 \r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-12", "empty size", b"\r\n\r\n"),
    _good_chunk("CK-13", "sixteen digits", b"0" * 15 + b"5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-14", "many leading zeros", b"0" * 30 + b"5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-15", "2^64+5", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-16", "LF after data", b"5\r\nhello\n0\r\n\r\n"),
    _bad_chunk("CK-17", "LF after size", b"5\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-18", "CR after size", b"5\rhello\r\n0\r\n\r\n"),
    _good_chunk("CK-19", "trailers", b"5\r\nhello\r\n0\r\nx: y\r\n\r\n", source=_TRAILER),
    _good_chunk("CK-20", "framing in trailers",
                b"0\r\nContent-Length: 5\r\nHost: evil\r\nTransfer-Encoding: gzip\r\n\r\n", b"",
                _TRAILER),
    _bad_chunk("CK-21", "data too long", b"5\r\nhelloX\r\n0\r\n\r\n"),
    _bad_chunk("CK-22", "not hexadecimal", b"Z\r\nZZ\r\nZZZ\r\n\r\n"),
    _bad_chunk("CK-23", "trailer without a colon", b"0\r\nno colon\r\n\r\n", _TRAILER),
    _bad_chunk("CK-24", "many trailers", b"0\r\n" + _fields(5000) + b"\r\n", _TRAILER, 431),
    _bad_chunk("CK-25", "bare LF in trailers", b"0\r\nx: y\n\r\n\r\n", _TRAILER),
    _bad_chunk("CK-26", "extension without a name", b"5;\r\nhello\r\n0\r\n\r\n", _EXTENSION),
    _bad_chunk("CK-27", "extension's name is no token", b"5;bad[=x\r\nhello\r\n0\r\n\r\n",
               _EXTENSION),
    _good_chunk("CK-28", "white space around extension", b"5 ; a = b\r\nhello\r\n0\r\n\r\n",
                source=_EXTENSION),
    _good_chunk("CK-29", "quoted extension", b'5;a="b;\\"c";d\r\nhello\r\n0\r\n\r\n',
                source=_EXTENSION),
    _bad_chunk("CK-30", "NUL in extension", b"5;a\x00\r\nhello\r\n0\r\n\r\n", _EXTENSION),
    _bad_chunk("CK-31", "64 KiB of extension",
               b"5;a=" + b"b" * 65_536 + b"\r\nhello\r\n0\r\n\r\n", _EXTENSION),
    _bad_chunk("CK-32", "CR LF is half there", b"5;a\rX\r\nhello\r\n0\r\n\r\n", _EXTENSION),
    _good_chunk("CK-33", "upper case", b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    _good_chunk("CK-34", "two", b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    _good_chunk("CK-35", "none", b"0\r\n\r\n", b""),
    Row("CK-36", "no last one", chunked(b"5\r\nhello\r\n"), 400, "RFC 9112 8", half_close=True,
        late=True),
    _bad_chunk("CK-37", "no CR LF after data", b"5\r\nhello0\r\n\r\n"),
    _bad_chunk("CK-38", "LF for the empty line", b"5\r\nhello\r\n0\r\n\n" + SMUGGLED),
    _bad_chunk("CK-39", "folded trailer", b"0\r\nx: y\r\n z\r\n\r\n", _TRAILER),
    _bad_chunk("CK-40", "NUL in a trailer", b"0\r\nx: \x00\r\n\r\n", _TRAILER),
    _bad_chunk("CK-41", "space before a trailer's colon", b"0\r\nx : y\r\n\r\n", _TRAILER),
    _good_chunk("CK-42", "as many trailers as may be", b"0\r\n" + _fields(100) + b"\r\n", b"",
                _TRAILER),
    _bad_chunk("CK-43", "one trailer more", b"0\r\n" + _fields(101) + b"\r\n", _TRAILER, 431),
    _bad_chunk("CK-44", "large trailer", b"0\r\nx: " + b"y" * 17_000 + b"\r\n\r\n", _TRAILER, 431),
    _bad_chunk("CK-45", "Arabic digit", b"\xd9\xa5\r\nhello\r\n0\r\n\r\n"),
    Row("CK-46", "2^64-1, and then nothing", chunked(b"FFFFFFFFFFFFFFFF\r\nhello"), 400, _CHUNK,
        half_close=True, late=True),
    _good_chunk("CK-47", "last one of two zeros", b"5\r\nhello\r\n00\r\n\r\n"),
    _good_chunk("CK-48", "last one with extension", b"5\r\nhello\r\n0;a\r\n\r\n",
                source=_EXTENSION),
    _bad_chunk("CK-49", "last one ends with LF", b"5\r\nhello\r\n0\n\n"),
    _bad_chunk("CK-50", "signed last one", b"+0\r\n\r\n" + SMUGGLED),
    Row("CK-51", "and a request behind", chunked(b"5\r\nhello\r\n0\r\n\r\n") + SECOND, 200,
        "RFC 9112 9.3.2", 2, (200,), body=HELLO),
    _bad_chunk("CK-52", "tab before size", b"\t5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-53", "size of another base", b"5h\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-54", "NUL behind size", b"5\x00\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-55", "comma behind size", b"5,5\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-56", "two CR", b"5\r\r\nhello\r\n0\r\n\r\n"),
    _bad_chunk("CK-57", "empty line between", b"5\r\nhello\r\n\r\n0\r\n\r\n"),
    _good_chunk("CK-58", "credentials in trailers", b"0\r\nAuthorization: Bearer x\r\n"
                b"X-Forwarded-For: 6.6.6.6\r\n\r\n", b"", _TRAILER),
    _bad_chunk("CK-59", "trailer's name is no token", b"0\r\nx(y): z\r\n\r\n", _TRAILER),
    _bad_chunk("CK-60", "quoted extension is not closed", b'5;a="b\r\nhello\r\n0\r\n\r\n',
               _EXTENSION),
)  # fmt: skip

ALL: Final = BOTH + CODINGS + LENGTHS + CHUNKS
