from __future__ import annotations

import pytest

from lb.domain.model import ModelEntry, ModelState
from lb.kserve import inference_pb2 as pb
from lb.kserve.repository import (
    NAME_BYTES,
    Region,
    cuda_regions_from_message,
    entries_from_json,
    entries_from_message,
    regions_from_json,
    regions_from_message,
)

INDEX = b"""[{"name": "a", "version": "1", "state": "READY", "reason": ""},
 {"name": "a", "version": "2", "state": "LOADING"}, {"name": "b"},
 {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]"""
ENTRIES = (
    ModelEntry(b"a", b"1", ModelState.READY),
    ModelEntry(b"a", b"2", ModelState.LOADING),
    ModelEntry(b"b", b"", ModelState.UNAVAILABLE),
    ModelEntry(b"c", b"1", ModelState.UNAVAILABLE, "unloaded"),
)


def test_a_list_of_models_is_read_from_json() -> None:
    assert tuple(entries_from_json(INDEX)) == ENTRIES
    assert tuple(entries_from_json(b" [ ] ")) == ()


def test_a_list_of_models_is_read_from_a_message() -> None:
    line = pb.RepositoryIndexResponse.ModelIndex
    message = pb.RepositoryIndexResponse(
        models=[
            line(name="a", version="1", state="READY"),
            line(name="a", version="2", state="LOADING"),
            line(name="b"),
            line(name="c", version="1", state="UNAVAILABLE", reason="unloaded"),
        ]
    )
    assert tuple(entries_from_message(message.SerializeToString())) == ENTRIES


def test_names_that_nobody_can_ask_for_are_left_out() -> None:
    long = "x" * (NAME_BYTES + 1)
    body = f'[{{"name": ""}}, {{"name": "{long}"}}, {{"name": "\\u00e9"}}]'.encode()
    assert [entry.name for entry in entries_from_json(body)] == ["é".encode()]
    message = pb.RepositoryIndexResponse()
    for name in ("", long, "é"):
        message.models.add(name=name)
    entries = entries_from_message(message.SerializeToString())
    assert [entry.name for entry in entries] == ["é".encode()]


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80x", rb"\ud800x"])
def test_a_name_that_is_no_text_is_left_out_alone(name: bytes) -> None:
    """A Triton lists the directories of its repository byte by byte."""
    body = b'[{"name": "a"}, {"name": "%b"}, {"name": "b"}]' % name
    assert [entry.name for entry in entries_from_json(body)] == [b"a", b"b"]


def test_a_message_with_a_name_that_is_no_text_is_read() -> None:
    lines = [b"\x0a" + bytes([len(each)]) + each for each in (b"a", b"\xff\xfey", b"b")]
    message = b"".join(b"\x0a" + bytes([len(line)]) + line for line in lines)
    assert [entry.name for entry in entries_from_message(message)] == [b"a", b"b"]


def test_reasons_are_cut() -> None:
    body = f'[{{"name": "a", "reason": "{"x" * 5000}"}}]'.encode()
    assert len(next(entries_from_json(body)).reason) == 1024


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"<html>", b"[1]", b'[{"name": 5}]', b"[" * 100_000, b"[{}", b"[{},]"),
        *(b"[,{}]", b"[{}{}]", b"[{}]x", b"[]]", b"[{}, {}", b'[{"name"}]', b"[\xff]"),
    ],
)
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|not JSON"):
        tuple(entries_from_json(body))


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="not a list of models"):
        tuple(entries_from_message(b"\x0a\xff"))
    with pytest.raises(ValueError, match="not a list of regions"):
        regions_from_message(b"\x0a\xff")
    with pytest.raises(ValueError, match="not a list of regions"):
        cuda_regions_from_message(b"\x0a\xff")


def test_regions_are_read_from_both_forms() -> None:
    region = Region("r", "/key", 64, 128)
    body = b'[{"name": "r", "key": "/key", "offset": 64, "byte_size": 128}]'
    assert regions_from_json(body) == (region,)
    status = pb.SystemSharedMemoryStatusResponse()
    made = status.regions["r"]
    made.name, made.key, made.offset, made.byte_size = "r", "/key", 64, 128
    assert regions_from_message(status.SerializeToString()) == (region,)
    cuda = pb.CudaSharedMemoryStatusResponse()
    cuda.regions["cuda"].name, cuda.regions["cuda"].byte_size = "cuda", 8
    assert cuda_regions_from_message(cuda.SerializeToString()) == (Region("cuda", "", 0, 8),)
    assert regions_from_json(b'[{"name": "cuda", "device_id": 0, "byte_size": 8}]') == (
        Region("cuda", "", 0, 8),
    )


def test_a_region_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers"):
        regions_from_json(b'[{"name": "r", "key": "/k", "byte_size": "8"}]')


@pytest.mark.parametrize("number", [-1, 2**64])
@pytest.mark.parametrize("field", ["offset", "byte_size"])
def test_a_region_of_no_possible_size_is_refused(field: str, number: int) -> None:
    with pytest.raises(ValueError, match="numbers"):
        regions_from_json(b'[{"name": "r", "key": "/k", "%b": %d}]' % (field.encode(), number))


@pytest.mark.parametrize("no_text", [b"\xff", b"\xed\xa0\x80", rb"\ud800"])
def test_a_region_that_is_no_text_spoils_no_other_one(no_text: bytes) -> None:
    """A Triton keeps names and keys byte by byte."""
    others = b'{"name": "a", "key": "/a"}, {"name": "%b", "key": "/b"}'
    body = b'[%b, {"name": "k", "key": "%b"}]' % (others % no_text, no_text)
    assert [region.name for region in regions_from_json(body)] == ["a", "k"]


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"[1]", b'[{"name": 5}]', b"[" * 100_000])
def test_what_is_no_list_of_regions_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|not JSON"):
        regions_from_json(body)
