"""Reading and writing what all merges share."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import (
    read_message,
    read_object,
    read_objects,
    write_json,
    write_objects,
)
from lb.kserve.merge.steps import finish


def test_json_is_written_as_triton_writes_it() -> None:
    assert write_json({"b": [1, "ä/\n"], "a": {}}) == '{"b":[1,"ä/\\n"],"a":{}}'.encode()


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer is no JSON"):
        read_object(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{},"a"]'])
def test_what_is_no_array_of_objects_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer is no JSON"):
        finish(read_objects(body))


def test_a_message_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        read_message(pb.ServerMetadataResponse, b"\x0a\xff")


def test_an_array_is_written_in_steps() -> None:
    values = [{"name": f"m{at}", "text": "x" * 1000} for at in range(100)]
    assert finish(write_objects(values)) == write_json(values)
    assert len(list(write_objects(values))) >= 5
    assert finish(write_objects([])) == b"[]"
