"""JSON in steps."""

from __future__ import annotations

import json

import pytest

from lb.kserve.merge import json_reader
from lb.kserve.merge.json_reader import JsonReader, read_in_steps
from lb.kserve.merge.steps import STEP_BYTES, finish


def test_a_long_text_takes_a_step_for_each_window() -> None:
    value = [{"name": f"m{at}", "text": "ä" * 30} for at in range(5000)]
    for is_ascii in (True, False):
        body = json.dumps(value, ensure_ascii=is_ascii).encode()
        assert finish(read_in_steps(body)) == value
        assert len(list(read_in_steps(body))) >= len(body) // (2 * STEP_BYTES)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 100_000,
        {"a": "\u00e4" * 60_000},
        [123456789] * 10_000,
        {"deep": [[["x" * 1000] * 40]]},
        {f"{at}": {"a": [], "b": {}} for at in range(5000)},
    ],
)
def test_values_longer_than_a_window_are_read(value: object) -> None:
    for ensure_ascii in (True, False):
        body = json.dumps(value, ensure_ascii=ensure_ascii, indent=1).encode()
        assert finish(read_in_steps(body)) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[1,",
        b"[1 2]",
        b'{"a" 1}',
        b'{"a":1,}',
        b"[,]",
        b"1 2",
        b"{1:2}",
        b'"a',
    ],
)
@pytest.mark.parametrize("size", [0, 2 * STEP_BYTES])
def test_what_is_no_json_is_refused(body: bytes, size: int) -> None:
    for text in (body, b"[" + b"1," * size + body + b"]"):
        if text == b"[" + body + b"]" and body in (b"",):
            continue
        with pytest.raises(ValueError, match=r"answer|digits"):
            finish(read_in_steps(text))


def test_bottomless_texts_are_refused_in_few_steps() -> None:
    for unit in (b"[", b'{"a":'):
        with pytest.raises(ValueError, match="no JSON"):
            finish(read_in_steps(unit * 1_000_000))


def test_what_would_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MAX_PARTS", 1000)
    assert len(finish(read_in_steps(b"[" + b"{}," * 300 + b"{}]"))) == 301
    with pytest.raises(ValueError, match="too long"):
        finish(read_in_steps(b"[" + b"{}," * 9000 + b"{}]"))


def test_places_are_bytes_of_the_text() -> None:
    body = '{"\u00e4":["\u00e4\U0001f600", 17]}'.encode()
    reader = JsonReader(body)
    places = []
    for name in reader.members("{"):
        assert name == "\u00e4"
        for _ in reader.members("["):
            reader.peek()
            begin = reader.position
            assert reader.within_window()[0]
            places.append(body[begin : reader.position].decode())
    reader.finish()
    assert places == ['"\u00e4\U0001f600"', "17"]
    begin = body.index(b"17")
    assert JsonReader(body, begin, begin + 2).within_window() == (True, 17)


def test_bytes_that_are_no_text_are_read_in_windows_too() -> None:
    body = b'["' + b"\x80" * (3 * STEP_BYTES) + b'",1,"\xc3\xa4"]'
    assert finish(read_in_steps(body)) == ["\udc80" * (3 * STEP_BYTES), 1, "\xe4"]
