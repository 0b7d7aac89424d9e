"""The port for Vertex AI."""

from __future__ import annotations

from lb.kserve.fronts import FrontFault, FrontRequest, Own
from lb.kserve.vertex import VertexRoutes, translate
from lb.proxy.http1.front import Front, FrontDecision
from lb.proxy.http1.shared import Http1Shared


class VertexFront(Front):
    """Translates requests of Vertex AI."""

    def __init__(self, relay: Http1Shared, routes: VertexRoutes, model: bytes) -> None:
        """
        Args:
            relay: does the rest.
            routes: of the front.
            model: which one predictions are of; empty: the only one that is ready.
        """
        super().__init__(relay)
        self._routes = routes
        self._model = model

    @property
    def may_remember(self) -> bool:
        """The only model may be another one next time."""
        return self._model != b""

    def read(self, head: bytes, request: FrontRequest) -> FrontDecision:
        """See `Front`."""
        model = self._model
        if not model and request.path == self._routes.predict and request.redirect is None:
            model = self._only_model()
        meaning = translate(self._routes, request, model)
        if isinstance(meaning, Own):
            return self.answered(head, request, meaning.status, meaning.body)
        return self.forwarded(head, request, meaning)

    def _only_model(self) -> bytes:
        routes = self.relay.dispatcher.pool.current.routes
        ready = [name for name, route in routes.items() if route.is_ready]
        if len(ready) != 1:
            raise FrontFault(
                f"{len(ready)} models are ready, so fronts.vertex.default_model must name one"
            )
        return ready[0]
