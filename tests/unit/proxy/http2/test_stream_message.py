"""What one message of a stream says of where it goes."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.domain.schedule import QueuePlan
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.pending_responses import StreamMessage
from lb.proxy.http2.inspection import INSPECTED_BYTES
from lb.proxy.http2.stream_message import read_message
from lb.wire.grpc.message import frame_message
from tests.fakes.backends import make_backend
from tests.fakes.paper_streams import ROUTES, request
from tests.fakes.relay import snapshot_of

START = SequenceStep(SequenceKey(b"seq", 7), is_start=True)


@pytest.fixture
def pool() -> PoolSnapshot:
    backends = [make_backend("b0")]
    return replace(snapshot_of(backends), routes=ROUTES)


def test_a_plain_model_needs_only_its_name(pool: PoolSnapshot) -> None:
    whole = request("plain", 7, "id", start=True)
    expected = StreamMessage(b"plain", id=b"id", has_one_answer=True)
    assert read_message(whole, pool, is_all=True) == expected
    assert read_message(whole[:12], pool, is_all=False) == expected._replace(id=b"")
    assert read_message(whole[:11], pool, is_all=False) is None


def test_rows_are_found_whatever_stands_before_the_name(pool: PoolSnapshot) -> None:
    route = replace(ROUTES[b"plain"], plan=QueuePlan(limits={}))
    pool = replace(pool, routes={b"m": route}, regions={b"there": pool.placements})
    inputs = [pb.ModelInferRequest.InferInputTensor(name="x", shape=[300, 1])]
    body = pb.ModelInferRequest(model_name="m", inputs=inputs).SerializeToString()
    message = read_message(frame_message(b"\x98\x06\x01" + body), pool, is_all=True)
    assert message is not None
    assert (message.model, message.rows) == (b"m", 300)


def test_a_step_is_read_with_its_version_and_id(pool: PoolSnapshot) -> None:
    whole = request("seq", 7, "id", start=True, version="3")
    expected = StreamMessage(b"seq", b"3", b"id", START, (), has_one_answer=True)
    assert read_message(whole, pool, is_all=True) == expected
    assert read_message(whole[:-1], pool, is_all=False) is None


def test_the_first_tensor_ends_the_look(pool: PoolSnapshot) -> None:
    whole = request("seq", 7, "id", start=True, tensor=bytes(100_000))
    message = read_message(whole[:200], pool, is_all=False)
    assert message is not None
    assert message.step == START


def test_a_model_without_a_route_is_looked_at_for_a_sequence(pool: PoolSnapshot) -> None:
    message = read_message(request("new", 7, start=True), pool, is_all=True)
    assert message is not None
    assert message.step == SequenceStep(SequenceKey(b"new", 7), is_start=True)
    assert not message.has_one_answer
    assert read_message(request("new"), pool, is_all=True) == StreamMessage(b"new")


@pytest.mark.parametrize("routes", [{}, {b"new": ModelRoute(facts=ModelFacts())}])
def test_a_model_that_no_backend_has_ready_has_one_answer(
    pool: PoolSnapshot, routes: dict[bytes, ModelRoute]
) -> None:
    expected = StreamMessage(b"new", id=b"id", has_one_answer=True, is_unserved=True)
    pool = replace(pool, routes=routes, knows_all=True)
    assert read_message(request("new", name="id"), pool, is_all=True) == expected
    pool = replace(pool, knows_all=False)
    message = read_message(request("new", name="id"), pool, is_all=True)
    assert message == expected._replace(has_one_answer=False, is_unserved=False)


@pytest.mark.parametrize("start", [b"\0", b"\1"], ids=["plain", "compressed"])
@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", b"\x12\x01x"])
def test_a_message_without_a_name_may_have_any_number_of_answers(
    pool: PoolSnapshot, start: bytes, body: bytes
) -> None:
    pool = replace(pool, knows_all=True)
    message = read_message(start + len(body).to_bytes(4, "big") + body, pool, is_all=True)
    assert message is not None
    assert (message.model, message.has_one_answer, message.is_unserved) == (b"", False, False)


@pytest.mark.parametrize(("model", "is_unserved"), [("new", True), ("plain", False)])
def test_of_a_compressed_message_the_name_within_counts(
    pool: PoolSnapshot, model: str, is_unserved: bool
) -> None:
    packed = gzip.compress(request(model, name="id")[5:])
    whole = b"\1" + len(packed).to_bytes(4, "big") + packed
    message = read_message(whole, replace(pool, knows_all=True), is_all=True)
    assert message is not None
    assert (message.model, message.has_one_answer) == (model.encode(), True)
    assert message.is_unserved is is_unserved


def test_a_ready_model_whose_configuration_is_not_known_may_have_any_number_of_answers(
    pool: PoolSnapshot,
) -> None:
    route = ModelRoute(facts=ModelFacts(), ready_versions=frozenset({b"1"}))
    pool = replace(pool, routes={b"new": route}, knows_all=True)
    message = read_message(request("new"), pool, is_all=True)
    assert message is not None
    assert not message.has_one_answer


def test_a_stateless_model_has_no_sequences(pool: PoolSnapshot) -> None:
    facts = ModelFacts(is_stateful=False)
    pool = replace(pool, routes={b"m": ModelRoute(facts=facts)})
    message = read_message(request("m", 7, start=True), pool, is_all=True)
    assert message is not None
    assert message.step is None


def test_a_compressed_message_is_inflated_to_look(pool: PoolSnapshot) -> None:
    packed = gzip.compress(request("seq", 7, "id", start=True)[5:])
    whole = b"\1" + len(packed).to_bytes(4, "big") + packed
    message = read_message(whole, pool, is_all=True)
    assert message is not None
    assert (message.model, message.id, message.step) == (b"seq", b"id", START)


def test_no_more_is_waited_for_than_the_limit(pool: PoolSnapshot) -> None:
    whole = request("new", version="v" * 2 * INSPECTED_BYTES)
    assert read_message(whole[: INSPECTED_BYTES - 1], pool, is_all=False) is None
    message = read_message(whole[:INSPECTED_BYTES], pool, is_all=False)
    assert message == StreamMessage(b"new")


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", b"\x12\x01x"])
def test_what_is_no_request_goes_anywhere(pool: PoolSnapshot, body: bytes) -> None:
    whole = b"\0" + len(body).to_bytes(4, "big") + body
    message = read_message(whole, pool, is_all=True)
    assert message is not None
    assert (message.model, message.step) == (b"", None)


def test_regions_that_not_all_backends_have_are_named(pool: PoolSnapshot) -> None:
    message = pb.ModelInferRequest(model_name="plain")
    tensor = message.inputs.add(name="IN")
    tensor.parameters["shared_memory_region"].string_param = "here"
    body = message.SerializeToString()
    whole = b"\0" + len(body).to_bytes(4, "big") + body
    found = read_message(whole, replace(pool, regions={b"here": pool.placements}), is_all=True)
    assert found is not None
    assert found.regions == (b"here",)
    found = read_message(whole, replace(pool, regions={b"there": pool.placements}), is_all=True)
    assert found is not None
    assert found.regions == ()


def test_of_long_words_of_a_client_little_is_kept(pool: PoolSnapshot) -> None:
    for model in ("seq", "plain", "new"):
        whole = request(model, 7, "i" * 20_000, version="9" * 5_000)
        message = read_message(whole, pool, is_all=True)
        assert message is not None
        assert len(message.id) + len(message.version) <= 256
