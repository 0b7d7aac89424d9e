"""The port for Vertex AI: which model a prediction is of."""

from __future__ import annotations

from dataclasses import replace

from lb.domain.model import NO_FACTS
from lb.domain.pool import ModelRoute
from lb.kserve.vertex import VertexRoutes
from lb.proxy.http1.server import Http1ServerConnection
from lb.proxy.http1.vertex import VertexFront
from tests.fakes.http1_sides import FakeTransport, Sides

ROUTES = VertexRoutes(health=b"/h", predict=b"/p")
PREDICT = b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Bench(Sides):
    """A client of a front, and a backend."""

    def __init__(self, model: bytes = b"") -> None:
        super().__init__()
        self.server = Http1ServerConnection(self.relay, VertexFront(self.relay, ROUTES, model))
        self.sent = FakeTransport(self.server)
        self.server.connection_made(self.sent)
        self.backend, self.wire = self.upstream()

    def serve(self, *ready: bytes) -> None:
        """Say which models are ready."""
        routes = {
            name: ModelRoute(facts=NO_FACTS, ready_versions=frozenset({b"1"})) for name in ready
        }
        routes[b"broken"] = ModelRoute(facts=NO_FACTS)
        self.pool.publish(replace(self.pool.current, routes=routes))

    def ask(self, request: bytes = PREDICT) -> bytes:
        """The first line that the backend gets, or the answer when it gets none."""
        self.server.data_received(request)
        line = self.wire.take().partition(b"\r\n")[0]
        if line:
            self.backend.data_received(OK)
            self.sent.take()
        return line or self.sent.take()


async def test_predictions_are_of_the_model_that_is_configured() -> None:
    assert Bench(b"simple").ask() == b"POST /v2/models/simple/infer HTTP/1.1"


async def test_they_are_of_the_only_model_that_is_ready() -> None:
    bench = Bench()
    bench.serve(b"one")
    assert bench.ask() == b"POST /v2/models/one/infer HTTP/1.1"
    bench.serve(b"two")
    assert bench.ask() == b"POST /v2/models/two/infer HTTP/1.1"


async def test_with_several_models_one_must_be_named() -> None:
    bench = Bench()
    bench.serve(b"one", b"two")
    assert b'{"error":"2 models are ready, so fronts.vertex.default_model' in bench.ask()


async def test_a_redirection_needs_no_default_model() -> None:
    request = PREDICT.replace(b"Host", b"X-Vertex-AI-Triton-Redirect: v2/models/m/config\r\nHost")
    assert Bench().ask(request) == b"GET /v2/models/m/config HTTP/1.1"


async def test_a_redirection_to_what_is_unknown_is_answered() -> None:
    request = PREDICT.replace(b"Host", b"X-Vertex-AI-Triton-Redirect: v2/nope\r\nHost")
    assert Bench().ask(request).startswith(b"HTTP/1.1 400 ")
