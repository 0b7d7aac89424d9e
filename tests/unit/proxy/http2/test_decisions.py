"""What is done with calls by their heads."""

from __future__ import annotations

from lb.kserve.operations import MODEL_INFER
from lb.proxy.http2.decisions import Decisions
from lb.wire.http2.fields import Field, encode_field
from lb.wire.http2.heads import RequestHead, build_request
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import METHOD_PATH, FieldPair, literals, request_fields


def head_of(*more: FieldPair, path: bytes = METHOD_PATH) -> RequestHead:
    pairs = request_fields(*more, path=path)
    fields = [Field(n, v, encode_field(n, v), never_indexed=False) for n, v in pairs]
    return build_request(fields, b"")


async def test_a_usual_inference_is_plain() -> None:
    relay = PaperRelay().relay
    head = head_of()
    assert relay.decide(head) is head.facts.route is MODEL_INFER
    assert head.facts.is_plain


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
    paper.relay.configure(paper.relay.options)
    reader = paper.relay.new_block_reader()
    reader.acknowledged()
    start, marker = literals(request_fields()), encode_field(b"cdn-loop", OURS)
    # Read whole, behind a beginning, again, and found without their `traceparent`.
    for number in (1, 2, 3, 3, 4, 5):
        context = encode_field(b"traceparent", b"00-%032x-%016x-00" % (number, number))
        for block in (start, start + context, start + context + encode_field(b"a", b"%d" % number)):
            head = reader.known_request(block) or reader.request(block)
            if head.facts.route is None:
                paper.relay.decide(head)
            assert head.block == block + marker
            facts = head.facts
            assert (facts.is_plain, facts.passed, facts.loop) == (True, (), "")
