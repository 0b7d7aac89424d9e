"""The repositories of several servers as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.index import GrpcIndex, HttpIndex
from tests.fakes.merges import AtOnce

Entry = dict[str, Any]
Line = pb.RepositoryIndexResponse.ModelIndex

READY = {"name": "m", "version": "1", "state": "READY"}
LOADING = {"name": "m", "version": "1", "state": "LOADING"}
UNLOADED = {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
SECOND = {"name": "m", "version": "2", "state": "READY"}
NAME_ONLY = {"name": "m"}
OTHER = {"name": "a"}


def merged(*lists: list[Entry]) -> list[Entry]:
    """What HTTP makes of it; gRPC has to agree."""
    merge = AtOnce(HttpIndex())
    answers = [(f"b{at}", merge.read(json.dumps(each).encode())) for at, each in enumerate(lists)]
    found: list[Entry] = json.loads(merge.combine(answers))
    grpc = AtOnce(GrpcIndex())
    messages = []
    for at, entries in enumerate(lists):
        message = pb.RepositoryIndexResponse()
        for entry in entries:
            message.models.add(**entry)
        messages.append((f"b{at}", grpc.read(message.SerializeToString())))
    whole = pb.RepositoryIndexResponse.FromString(grpc.combine(messages))
    as_json = [{field.name: value for field, value in each.ListFields()} for each in whole.models]
    assert as_json == found
    return found


def test_the_index_of_one_server_stays_as_it_is() -> None:
    entries = [OTHER, READY, UNLOADED | {"version": "2"}]
    assert merged(entries) == entries


def test_a_version_is_ready_when_one_server_has_it_ready() -> None:
    for order in ([READY], [UNLOADED]), ([UNLOADED], [READY]), ([LOADING], [UNLOADED], [READY]):
        assert merged(*order) == [READY]


def test_the_state_nearest_to_ready_counts_with_its_reason() -> None:
    assert merged([UNLOADED], [LOADING]) == [LOADING]
    assert merged([UNLOADED], [UNLOADED | {"reason": "other"}]) == [UNLOADED]


def test_versions_of_all_servers_are_listed_at_their_model() -> None:
    assert merged([READY, OTHER], [SECOND]) == [READY, SECOND, OTHER]


def test_who_knows_only_the_name_says_nothing_about_versions() -> None:
    assert merged([NAME_ONLY], [UNLOADED]) == [UNLOADED]
    assert merged([NAME_ONLY], [NAME_ONLY]) == [NAME_ONLY]


def test_fields_that_are_not_known_survive() -> None:
    body = b'[{"name":"m","version":"1","state":"READY","new":[1]}]'
    merge = AtOnce(HttpIndex())
    assert merge.combine([("a", merge.read(body)), ("b", merge.read(b"[]"))]) == body
    message = b"\x0a\x08\x0a\x01m\xca\x3e\x02hi\xca\x3e\x02yo"  # field 1001, inside and beside
    grpc = AtOnce(GrpcIndex())
    assert grpc.combine([("a", grpc.read(message)), ("b", grpc.read(b""))]) == message


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff\xfey", "\ufffd\ufffdy"),
        (b"\xed\xa0\x80x", "\ufffd" * 3 + "x"),
        (rb"\ud800x", "\ufffdx"),
    ],
)
def test_a_name_that_is_no_text_does_not_spoil_the_index(name: bytes, shown: str) -> None:
    """A Triton lists directories of any name, and strict clients refuse text that is no Unicode."""
    merge = AtOnce(HttpIndex())
    odd = merge.read(b'[{"name":"%b"},{"name":"a"}]' % name)
    whole = merge.combine([("b0", odd), ("b1", merge.read(json.dumps([READY]).encode()))])
    assert json.loads(whole.decode()) == [{"name": shown}, OTHER, READY]
    assert b"\\u" not in whole


def test_grpc_leaves_out_a_name_that_is_no_text() -> None:
    merge = AtOnce(GrpcIndex())
    good = pb.RepositoryIndexResponse(models=[Line(name="a"), Line(**READY)])
    odd = b"\x0a\x03\x0a\x01\xff" + good.SerializeToString()
    whole = pb.RepositoryIndexResponse.FromString(merge.combine([("b0", merge.read(odd))]))
    assert whole == good
