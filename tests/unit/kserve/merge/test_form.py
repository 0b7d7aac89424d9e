"""Reading and writing what all merges share."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge import form
from lb.kserve.merge.form import (
    read_message,
    read_object,
    read_objects,
    require_moderate,
    write_json,
)


def test_json_is_written_as_triton_writes_it() -> None:
    assert write_json({"b": [1, "ä/\n"], "a": {}}) == '{"b":[1,"ä/\\n"],"a":{}}'.encode()


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer is no JSON"):
        read_object(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{},"a"]'])
def test_what_is_no_array_of_objects_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="the answer is no JSON"):
        read_objects(body)


def test_a_message_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        read_message(pb.ServerMetadataResponse, b"\x0a\xff")


def test_what_would_take_too_much_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "MOST_BYTES", 100)
    monkeypatch.setattr(form, "_MOST_PARTS", 9)
    require_moderate(b"[" + b"{}," * 4 + b"7" * 80)
    for body in (b"[" * 10, b"," * 10, b"x" * 101):
        with pytest.raises(ValueError, match="too long"):
            require_moderate(body)
