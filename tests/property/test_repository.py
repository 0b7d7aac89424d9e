"""Whatever a backend says of itself is understood or refused; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.facts import configured_from_json, configured_from_message
from lb.kserve.repository import (
    cuda_regions_from_message,
    entries_from_json,
    entries_from_message,
    regions_from_json,
    regions_from_message,
)
from lb.kserve.server_settings import log_from_message, settings_from_json, trace_from_message

FROM_JSON = (configured_from_json, entries_from_json, regions_from_json, settings_from_json)
FROM_MESSAGE = (
    configured_from_message,
    entries_from_message,
    regions_from_message,
    cuda_regions_from_message,
    trace_from_message,
    log_from_message,
)
ENTRY_KEYS = ("name", "version", "state", "reason")
KEYS = st.sampled_from(
    [
        *ENTRY_KEYS,
        *("key", "offset", "byte_size", "log_info"),
        *("trace_level", "max_batch_size", "sequence_batching", "instance_group", "count"),
        *("gpus", "oldest", "direct", "max_candidate_sequences", "ensemble_scheduling", "step"),
        *("model_name", "max_sequence_idle_microseconds", "model_transaction_policy"),
        *("decoupled", "iterative_sequence", "parameters", "kind", "dynamic_batching", "input"),
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["READY", "KIND_GPU", "1", "-1", "1e400", "\ud800"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def read(reader: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        found = reader(data)
        return tuple(found) if isinstance(found, Iterator) else found
    except ValueError:
        return None


@pytest.mark.parametrize("reader", FROM_JSON)
@given(content=VALUES)
def test_any_json_is_read_or_refused(reader: Callable[[bytes], Any], content: Any) -> None:
    found = read(reader, json.dumps(content).encode())
    assert read(reader, json.dumps(content).encode()) == found


@given(
    items=st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=4),
    separators=st.sampled_from([(",", ":"), (" , ", " : "), ("\n,", ":\t")]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_lists_are_read_as_the_whole_of_their_json_is(
    items: list[Any], separators: tuple[str, str], encoding: str
) -> None:
    text = f" {json.dumps(items, separators=separators)}\n".encode(encoding)
    wanted = json.loads(text)
    texts = [entry.get(key) or "" for entry in wanted for key in ENTRY_KEYS]
    found = read(entries_from_json, text)
    if not all(isinstance(each, str) for each in texts):
        assert found is None
        return
    names = [entry.get("name") or "" for entry in wanted]
    assert [each.name.decode() for each in found] == list(filter(None, names))


@pytest.mark.parametrize("reader", FROM_MESSAGE)
@given(message=st.binary(max_size=60))
def test_any_message_is_read_or_refused(reader: Callable[[bytes], Any], message: bytes) -> None:
    found = read(reader, message)
    assert read(reader, message) == found


@given(count=st.integers(-5, 5), size=st.integers(-5, 100), idle=st.integers(0, 2**64 - 1))
def test_slots_and_times_make_sense(count: int, size: int, idle: int) -> None:
    config = pb.ModelConfig(
        max_batch_size=size,
        instance_group=[pb.ModelInstanceGroup(count=count)],
        sequence_batching=pb.ModelSequenceBatching(
            max_sequence_idle_microseconds=idle,
            oldest=pb.ModelSequenceBatching.StrategyOldest(max_candidate_sequences=size),
        ),
    )
    message = pb.ModelConfigResponse(config=config).SerializeToString()
    facts = configured_from_message(message).facts
    assert facts.slots >= 0
    assert facts.idle_s > 0
