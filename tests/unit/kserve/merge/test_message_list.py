"""Messages that are lists of messages."""

from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge import message_list
from lb.kserve.merge.message_list import ListWriter, read_list
from lb.kserve.merge.steps import finish


def test_entries_are_found_and_written_as_they_were() -> None:
    entries = [pb.ModelStatistics(name=f"m{at}", version="x" * at) for at in range(300)]
    body = pb.ModelStatisticsResponse(model_stats=entries).SerializeToString()
    found = finish(read_list(body + b"\xca\x3e\x02hi", 1, 1000))
    assert [pb.ModelStatistics.FromString(body[b:e]) for b, e in found.spans] == entries
    assert found.others == b"\xca\x3e\x02hi"
    writer = ListWriter(1)
    for entry in entries:
        writer.add(entry)
    assert writer.finish(found.others) == body + found.others


def test_a_long_list_is_read_in_steps() -> None:
    body = pb.ModelStatisticsResponse(
        model_stats=[pb.ModelStatistics(name="m")] * 10_000
    ).SerializeToString()
    assert len(list(read_list(body, 1, 100))) >= 10


@pytest.mark.parametrize("body", [b"\x0a\x05abc", b"\xff", b"\x0a\xc8\x01" + b"x" * 200])
def test_what_is_malformed_or_has_too_long_entries_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"impossible|cut off|too long"):
        finish(read_list(body, 1, 100))


def test_fields_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_list, "_MAX_FIELDS", 10)
    assert len(finish(read_list(b"\x0a\x00" * 10, 1, 100)).spans) == 10
    with pytest.raises(ValueError, match="too many fields"):
        finish(read_list(b"\x0a\x00" * 11, 1, 100))
