"""Streams of inferences over a `PaperRelay`: what a client sends, backends get, and both answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import frame_message
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.relay import Options
from tests.fakes.stream_backend import step
from tests.wire.frames import (
    DATA,
    HEADERS,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    RST_STREAM,
    FieldPair,
    Frame,
    data,
    headers,
    request_fields,
)

STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
ROUTES = {
    b"seq": ModelRoute(facts=ModelFacts(is_stateful=True, is_decoupled=False, idle_s=60.0)),
    b"free": ModelRoute(facts=ModelFacts(is_stateful=True, is_decoupled=True, idle_s=60.0)),
    b"plain": ModelRoute(
        facts=ModelFacts(is_stateful=False, is_decoupled=False), is_uniform=True, is_plain=True
    ),
}


def request(model: str, sequence: int = 0, name: str = "", **more: Any) -> bytes:
    """A request with its prefix."""
    return frame_message(step(model, sequence, name, **more).SerializeToString())


def result(model: str, name: str, tensor: bytes = b"", *, is_last: bool = False) -> bytes:
    """An answer with its prefix, which may say that it is the last one to its request."""
    response = pb.ModelInferResponse(model_name=model, id=name)
    if is_last:
        response.parameters["triton_final_response"].bool_param = True
    if tensor:
        response.raw_output_contents.append(tensor)
    return frame_message(pb.ModelStreamInferResponse(infer_response=response).SerializeToString())


class PaperStreams:
    """A client's stream 1, and backends that do what a test says."""

    def __init__(
        self,
        *more: FieldPair,
        backends: int = 2,
        options: Options | None = None,
        **sizes: int,
    ) -> None:
        self.bench = PaperRelay(backends=backends, options=options, **sizes)
        self.bench.ref.publish(replace(self.bench.ref.current, routes=ROUTES))
        self.client = self.bench.client()
        self.backends = [self.bench.backend(number) for number in range(backends)]
        self.got: list[Frame] = []
        """All frames that the client got."""
        self.client.sends(headers(1, request_fields(*more, path=STREAM)))

    @property
    def session(self) -> Any:
        """What the call that runs has, for unit tests of its parts."""
        return self.client.facts.streams[1].owner

    def send(self, *requests: bytes, end: bool = False) -> None:
        """The client sends messages, each in a frame of its own."""
        for each in requests:
            self.client.sends(data(1, each))
        if end:
            self.client.sends(data(1, end=True))

    def begin_two(self) -> None:
        """Sequence 1 runs on b0, and 2 on b1; both answered."""
        self.send(request("seq", 1, "1", start=True), request("seq", 2, "2", start=True))
        for number, backend in enumerate(self.backends[:2]):
            backend.gets()
            backend.sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", str(number + 1))))
        assert self.ids() == ["1", "2"]

    def looks(self) -> list[Frame]:
        """New frames that the client got."""
        new = self.client.gets()
        self.got += new
        return new

    def answers(self) -> list[pb.ModelStreamInferResponse]:
        """Whole answers that the client got since the last time; it must end with one."""
        stream = b"".join(frame.payload for frame in self.looks() if frame.kind == DATA)
        found = []
        while stream:
            size = int.from_bytes(stream[1:5], "big")
            assert len(stream) >= 5 + size
            found.append(pb.ModelStreamInferResponse.FromString(stream[5 : 5 + size]))
            stream = stream[5 + size :]
        return found

    def ids(self) -> list[str]:
        """The ids of those answers."""
        return [answer.infer_response.id for answer in self.answers()]

    def requests(self, number: int) -> list[str]:
        """The ids of new requests that a backend got, which must be whole."""
        stream = b"".join(f.payload for f in self.backends[number].gets() if f.kind == DATA)
        found = []
        while stream:
            size = int.from_bytes(stream[1:5], "big")
            found.append(pb.ModelInferRequest.FromString(stream[5 : 5 + size]).id)
            stream = stream[5 + size :]
        return found

    def end(self, *numbers: int) -> None:
        """Backends end their streams well."""
        for number in numbers:
            self.backends[number].sends(headers(1, OK_TRAILERS, end=True))

    def status(self) -> int | None:
        """How the client's stream ended: its gRPC status."""
        self.looks()
        last = [frame for frame in self.got if frame.kind == HEADERS and frame.ends_stream]
        if not last:
            return None
        at = last[-1].payload.index(b"grpc-status") + len("grpc-status")
        size = last[-1].payload[at]
        return int(last[-1].payload[at + 1 : at + 1 + size])

    def resets(self) -> list[int]:
        """Codes of the resets that the client got."""
        self.looks()
        return [frame.code for frame in self.got if frame.kind == RST_STREAM]

    async def turn(self) -> None:
        """Let what was put off happen."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.bench.flush()
