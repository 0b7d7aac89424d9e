"""Hellos of real clients, and what is none."""

from __future__ import annotations

import pytest

from lb.wire.tls.hello import (
    DECODE_ERROR,
    MAX_HELLO,
    MAX_RECORDS,
    ClientHello,
    HelloError,
    HelloReader,
    alert,
)
from tests.fakes.hello import extension, hello_with, make_hello, records


def name_extension(name: bytes, kind: int = 0) -> bytes:
    entry = bytes((kind,)) + len(name).to_bytes(2, "big") + name
    return extension(0, len(entry).to_bytes(2, "big") + entry)


def test_name_and_protocols_are_read() -> None:
    hello = HelloReader().take(make_hello("A.example", ("h2", "http/1.1")))
    assert hello == ClientHello("a.example", (b"h2", b"http/1.1"))
    assert hello.shown_name == "a.example"


def test_both_may_be_missing() -> None:
    hello = HelloReader().take(make_hello(None))
    assert hello == ClientHello("", ())
    assert hello.shown_name == "-"
    assert HelloReader().take(hello_with(b"")) == ClientHello()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_hello_may_be_spread_over_reads_and_some_records(size: int) -> None:
    message = make_hello("a.example", ("h2",))[5:]
    data = records(message[:40], size) + records(message[40:], 100)
    assert HelloReader().take(data) == ClientHello("a.example", (b"h2",))
    reader = HelloReader()
    found = [reader.take(data[at : at + 1]) for at in range(len(data))]
    assert found == [None] * (len(data) - 1) + [ClientHello("a.example", (b"h2",))]
    assert reader.received == data


def test_what_follows_a_hello_is_not_looked_at() -> None:
    reader = HelloReader()
    assert reader.take(make_hello("a.example") + b"early data") == ClientHello("a.example")
    assert reader.received.endswith(b"early data")


def test_a_hello_in_very_many_records_is_refused() -> None:
    hello = hello_with(extension(21, bytes(8000)))[5:]
    assert HelloReader().take(records(hello, len(hello) // MAX_RECORDS + 1)) == ClientHello()
    with pytest.raises(HelloError, match="too many records"):
        HelloReader().take(records(hello, len(hello) // MAX_RECORDS - 1))


def test_a_final_dot_is_not_a_part_of_the_name() -> None:
    assert HelloReader().take(hello_with(name_extension(b"a.example."))) == ClientHello("a.example")


def test_names_that_are_no_host_names_are_passed_over() -> None:
    assert HelloReader().take(hello_with(name_extension(b"x", kind=1))) == ClientHello()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\x40\x01",
        records(b"\2\0\0\0", 4),
        records(b"\1" + (MAX_HELLO + 1).to_bytes(3, "big"), 4),
        records(b"\1\0\0\5\3\3abc", 99),
        hello_with(b"\0"),
        hello_with(extension(5, b"") * 2),
        hello_with(name_extension(b"a\0b")),
        hello_with(name_extension("ä".encode())),
        hello_with(extension(16, b"\0\0")),
        hello_with(extension(16, b"\0\1\0")),
        hello_with(extension(16, b"\0\3\5h2")),
    ],
    ids=lambda data: data[:20].hex(),
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(HelloError):
        HelloReader().take(data)


def test_an_alert_is_one_record() -> None:
    assert alert(DECODE_ERROR) == bytes((21, 3, 3, 0, 2, 2, 50))
