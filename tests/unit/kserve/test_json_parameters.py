"""The search for parameters in JSON."""

from __future__ import annotations

import json
import time

import pytest

from lb.kserve.json_parameters import MAX_SIZE, ParametersScan, decode_object


def found_in(*pieces: bytes) -> dict[str, object]:
    scan = ParametersScan()
    for piece in pieces:
        if scan.feed(piece):
            break
    return scan.parameters


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


TENSOR = b'{"name":"X","shape":[2],"datatype":"INT32","data":[1,2],"parameters":{"a":1}}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"parameters":{"a":2}}',
        b'{"id":"r","inputs":[' + TENSOR + b'],"parameters":{"a":2}}',
        b'{ "parameters" \n:\t {"a" : 2 } , "inputs":[' + TENSOR + b"]}",
        b'{"id":"parameters","parameters":{"a":2}}',
        b'{"id":"\\"parameters\\":{","parameters":{"a":2}}',
        b'{"id":"\\\\","parameters":{"a":2}}',
        b'{"id":"\\\\\\"","parameters":{"a":2}}',
        b'{"x":{"parameters":{"a":1}},"parameters":{"a":2}}',
        b'{"x":["parameters",{"y":"}]"}],"parameters":{"a":2}}',
        b'{"parameters":{"a":2},"parameters":{"a":3}}',
        b'{"parameters":{"a":2,"a":3}}',
        b'\xef\xbb\xbf{"parameters":{"a":2}}',
    ],
)
def test_the_first_of_the_outermost_object_is_found_however_it_comes(text: bytes) -> None:
    assert found_in(text) == {"a": 2}
    assert found_in(*bytewise(text)) == {"a": 2}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"1",
        b'{"inputs":[' + TENSOR + b"]}",
        b'[{"parameters":{"a":2}}]',
        b'{"parameters":[{"a":2}]}',
        b'{"parameters":null}',
        b'{"parameters":{"a":2',
        b'{"parameters":{"a":2,}}',
        b'{"x":"{\\"parameters\\":{\\"a\\":2}}"}',
        b'{"id":"x","x":"parameters","y":{"a":2}}',
    ],
)
def test_there_are_none_elsewhere(text: bytes) -> None:
    assert found_in(text) == {}
    assert found_in(*bytewise(text)) == {}


def test_nothing_is_kept_of_what_was_passed_over() -> None:
    scan = ParametersScan()
    scan.feed(b'{"inputs":[{"data":[' + b"1," * 100_000)

    assert not scan.feed(b"1" * 100_000)
    assert len(scan._carry) < 20


def test_parameters_that_do_not_end_are_given_up() -> None:
    scan = ParametersScan()
    scan.feed(b'{"parameters":{"a":"')

    assert any(scan.feed(b"x" * 1000) for _ in range(MAX_SIZE // 1000 + 1))
    assert scan.parameters == {}


def test_the_end_of_the_object_ends_the_search() -> None:
    scan = ParametersScan()

    assert not scan.feed(b'{"id":"1"')
    assert scan.feed(b"}            ")


def test_text_that_is_not_utf8_is_taken_as_it_is() -> None:
    assert found_in(b'{"parameters":{"a":"\xe4"}}') == {"a": "\udce4"}


def test_hostile_nesting_is_no_object() -> None:
    assert decode_object(b'{"a":' + b"[" * 60_000) is None
    assert found_in(b'{"parameters":{"a":' + b"[" * 60_000 + b"}") == {}


@pytest.mark.parametrize(
    "unit",
    [
        b'"",',
        b'"\\"",',
        b"[",
        b"[[]],",
        b"\\",
        b'"parameters",',
        b'\\"parameters"',
        b'"parameters":',
        b'{"parameters":{}},',
        b"1.5,",
        b'"',
        b"}",
    ],
)
def test_no_piece_blocks_for_long(unit: bytes) -> None:
    size = 256 * 1024
    scan = ParametersScan()
    scan.feed(b'{"x":[')
    piece = unit * (size // len(unit))
    started = time.process_time()
    scan.feed(piece)
    took = time.process_time() - started
    assert took < 0.2  # it takes 1 to 7 ms


def test_numbers_in_the_millions_are_passed_at_the_speed_of_memory() -> None:
    body = json.dumps({"inputs": [{"data": list(range(1_000_000))}], "parameters": {"a": 2}})
    pieces = [body.encode()[at : at + 65536] for at in range(0, len(body), 65536)]

    assert found_in(*pieces) == {"a": 2}
