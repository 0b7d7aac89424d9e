"""What the fronts for cloud platforms have in common."""

from __future__ import annotations

import pytest

from lb.kserve.fronts import Forward, FrontFault, FrontRequest, json_length, v2_head

MIME = b"application/vnd.x.binary+json;json-header-size="


def request(content_type: bytes, length: int = 100) -> FrontRequest:
    return FrontRequest(b"POST", b"/predict", length, content_type)


@pytest.mark.parametrize(
    ("number", "length"),
    [(b"17", 17), (b"0", 0), (b"100", 100), (b" +5; a=b", 5), (b"abc", 0), (b"", 0)],
)
def test_the_content_type_says_how_much_is_json(number: bytes, length: int) -> None:
    assert json_length(MIME, request(MIME + number)) == length


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", MIME.upper() + b"5", MIME.replace(b";", b"; ")]
)
def test_other_content_types_say_nothing(content_type: bytes) -> None:
    assert json_length(MIME, request(content_type)) == -1


@pytest.mark.parametrize("number", [b"-5", b"101", b"99999999999"])
def test_a_length_that_cannot_be_is_a_fault(number: bytes) -> None:
    with pytest.raises(FrontFault) as raised:
        json_length(MIME, request(MIME + number))

    text = f"inference header size should be in range (0, 100), got: {number.decode()}"
    assert str(raised.value) == text


def test_a_body_in_chunks_may_be_of_any_length() -> None:
    assert json_length(MIME, request(MIME + b"101", length=-1)) == 101


def test_a_content_type_with_something_before_it_is_a_fault() -> None:
    with pytest.raises(FrontFault, match="expect MIME type for binary data starts with 'appl"):
        json_length(MIME, request(b"x" + MIME + b"5"))


HEAD = (
    b"POST /predict?a=b HTTP/1.1\r\nHost: x\r\nContent-Type: mine;json-header-size=5\r\n"
    b"INFERENCE-header-Content-Length: 3\r\nContent-Encoding: gzip\r\nX-Custom: 1\r\n"
    b"Accept-Encoding: gzip\r\nContent-Length: 9\r\n\r\n"
)


def test_the_head_becomes_that_of_the_v2_request() -> None:
    assert v2_head(HEAD, Forward(b"POST", b"/v2/models/m/infer", 5)) == (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nX-Custom: 1\r\nContent-Length: 9\r\n"
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: 5\r\n\r\n"
    )


def test_the_content_type_stays_where_it_says_nothing() -> None:
    assert v2_head(HEAD, Forward(b"GET", b"/v2")) == (
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Type: mine;json-header-size=5\r\n"
        b"X-Custom: 1\r\nContent-Length: 9\r\n\r\n"
    )


def test_the_version_of_http_stays() -> None:
    assert v2_head(b"GET /ping HTTP/1.0\r\n\r\n", Forward(b"GET", b"/v2")) == (
        b"GET /v2 HTTP/1.0\r\n\r\n"
    )
