"""Which variant gets the messages of a stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lb.access.gate import Gate
from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.proxy.http2.variant_stream import StreamVariants
from lb.proxy.variants import VariantRules
from tests.unit.proxy.test_variants import NAME, Desk, snapshot


def stream(desk: Desk) -> StreamVariants:
    call: Any = SimpleNamespace(
        relay=SimpleNamespace(
            dispatcher=SimpleNamespace(variants=desk.book, gate=Gate()), now=desk.now
        ),
        server=SimpleNamespace(inspected=0, client=None),
        head=SimpleNamespace(claim=None),
        protocol=AppProtocol.GRPC,
        hint=lambda _: b"",
        token="",
    )
    return StreamVariants(call)


def asked(variants: StreamVariants) -> str:
    """The model that gets the next message."""
    message = pb.ModelInferRequest(model_name=NAME.decode()).SerializeToString()
    renamed = variants.request(message, len(message))
    assert renamed is not None
    return str(pb.ModelInferRequest.FromString(renamed).model_name)


def test_messages_stay_with_their_variant_while_a_backend_has_it_ready() -> None:
    desk = Desk()
    stable = VariantRules(name="stable", model=b"detector", weight=0)
    desk.configure(stable, VariantRules(name="canary", model=b"detector_v2", weight=1))
    variants = stream(desk)
    assert [asked(variants) for _ in range(3)] == ["detector_v2"] * 3
    desk.pool.publish(snapshot(b"detector"))
    assert [asked(variants) for _ in range(3)] == ["detector"] * 3
    desk.pool.publish(snapshot(b"detector", b"detector_v2"))
    assert asked(variants) == "detector", "it stays with the one that it has now"
