"""What is done with calls by their heads."""

from __future__ import annotations

import pytest

from lb.domain.operation import Treatment
from lb.kserve.operations import MODEL_INFER, UNKNOWN
from lb.proxy.http2.decisions import Decisions
from lb.proxy.http2.relay import Http2Options
from lb.wire.http2.fields import Field, encode_field
from lb.wire.http2.heads import RequestHead, build_request
from tests.fakes.frames import METHOD_PATH, FieldPair, request_fields
from tests.fakes.links import PaperRelay


def head_of(*more: FieldPair, path: bytes = METHOD_PATH) -> RequestHead:
    pairs = request_fields(*more, path=path)
    fields = [Field(n, v, encode_field(n, v), never_indexed=False) for n, v in pairs]
    return build_request(fields, b"")


async def test_a_usual_inference_is_plain() -> None:
    relay = PaperRelay().relay
    head = head_of()
    assert relay.decide(head) is head.route is MODEL_INFER
    assert head.is_plain


@pytest.mark.parametrize(
    "head",
    [
        head_of((b"grpc-timeout", b"0S")),
        head_of((b"grpc-timeout", b"x")),
        head_of((b"x", b"y" * 5000)),
        head_of(path=b"/inference.GRPCInferenceService/ServerLive"),
        head_of(path=b"/inference.GRPCInferenceService/RepositoryIndex"),
    ],
)
async def test_what_needs_a_second_look_is_not(head: RequestHead) -> None:
    """A passed and a malformed timeout, a large head, calls without a model in the message."""
    relay = PaperRelay(options=Http2Options(head_size=4000)).relay
    relay.decide(head)
    assert not head.is_plain


async def test_a_limit_on_messages_makes_every_call_need_one() -> None:
    head = head_of()
    PaperRelay(options=Http2Options(message_size=1000)).relay.decide(head)
    assert not head.is_plain


async def test_unknown_calls_are_balanced() -> None:
    head = head_of(path=b"/other.Service/Call")
    assert PaperRelay().relay.decide(head) is UNKNOWN
    assert UNKNOWN.treatment is Treatment.BALANCE


async def test_heads_for_one_path_are_decided_each_for_itself() -> None:
    decisions = Decisions(PaperRelay().relay)
    heads = [head_of((b"grpc-timeout", value)) for value in (b"5S", b"0S", b"5S")]
    for head in heads:
        assert decisions.decide(head) is MODEL_INFER
    assert [head.is_plain for head in heads] == [True, False, True]


async def test_paths_that_clients_make_up_are_not_all_remembered() -> None:
    decisions = Decisions(PaperRelay().relay)
    for number in range(1000):
        decisions.decide(head_of(path=b"/a.B/%d" % number))
    decisions.decide(head_of(path=b"/a.B/" + b"c" * 1000))
    assert len(decisions) <= 256


OURS, OTHER = (b"triton-lb-%016x" % number for number in (1, 2))


async def test_a_head_gets_our_hop_marker_once() -> None:
    paper = PaperRelay()
    paper.dispatcher.identity = OURS
    decisions = Decisions(paper.relay)
    head = head_of()
    before = head.block
    decisions.decide(head)
    assert head.block == before + encode_field(b"cdn-loop", OURS)
    assert (head.is_plain, head.passed, head.loop) == (True, (), "")


@pytest.mark.parametrize("own", [OURS, OTHER])
async def test_a_head_that_comes_back_is_a_loop(own: bytes) -> None:
    paper = PaperRelay()
    paper.dispatcher.identity = own
    head = head_of((b"cdn-loop", b"a.cdn"), (b"cdn-loop", OURS))
    Decisions(paper.relay).decide(head)
    assert head.passed == (OURS,)
    assert (bool(head.loop), head.is_plain) == ((True, False) if own == OURS else (False, True))
