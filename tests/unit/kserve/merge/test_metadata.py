"""Several servers as one server."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.metadata import GrpcMetadata, HttpMetadata
from tests.fakes.merges import AtOnce

ONE = b'{"name":"triton","version":"2.51.0","extensions":["sequence","trace","logging"]}'
TWO = b'{"name":"triton","version":"2.73.0","extensions":["new","logging","sequence"]}'


def test_the_first_speaks_and_only_common_extensions_count() -> None:
    merge = AtOnce(HttpMetadata())
    both = merge.combine([("a", merge.read(ONE)), ("b", merge.read(TWO))])
    assert both == b'{"name":"triton","version":"2.51.0","extensions":["sequence","logging"]}'


def test_one_stays_as_it_is() -> None:
    merge = AtOnce(HttpMetadata())
    assert merge.combine([("a", merge.read(ONE))]) == ONE
    assert merge.combine([("a", merge.read(b'{"name":"x"}'))]) == b'{"name":"x"}'


def test_grpc_is_merged_alike() -> None:
    merge = AtOnce(GrpcMetadata())
    one = pb.ServerMetadataResponse(name="t", version="1", extensions=["a", "b", "c"])
    two = pb.ServerMetadataResponse(name="u", version="2", extensions=["c", "a"])
    answers = [("a", merge.read(one.SerializeToString())), ("b", two)]
    assert pb.ServerMetadataResponse.FromString(merge.combine(answers)) == (
        pb.ServerMetadataResponse(name="t", version="1", extensions=["a", "c"])
    )
    assert merge.combine(answers[:1]) == one.SerializeToString()


def test_extensions_that_are_no_list_are_refused() -> None:
    with pytest.raises(ValueError, match="no list"):
        AtOnce(HttpMetadata()).read(b'{"extensions":3}')
