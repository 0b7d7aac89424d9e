"""The ports for hosting platforms, made from the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.domain.backend import Address
from lb.kserve.sagemaker import UNSPECIFIED, SageMakerRoutes
from lb.kserve.vertex import VertexRoutes
from lb.proxy.http1.front import Front
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http1.sagemaker import SageMakerFront
from lb.proxy.http1.server import ServerConnection
from lb.proxy.http1.vertex import VertexFront
from lb.settings.fronts import FrontSettings, SageMakerSettings, VertexSettings

SAGEMAKER: Final = "sagemaker"
VERTEX: Final = "vertex"


def front_addresses(fronts: FrontSettings) -> dict[str, Address]:
    """Where the fronts that are enabled listen, by name."""
    named: tuple[tuple[str, SageMakerSettings | VertexSettings], ...] = (
        (SAGEMAKER, fronts.sagemaker),
        (VERTEX, fronts.vertex),
    )
    return {name: front.address for name, front in named if front.enabled}


def front_factory(
    fronts: FrontSettings, name: str, relay: Http1Relay
) -> Callable[[], ServerConnection] | None:
    """What accepts connections at the listener `name`; None where it is no front's."""
    front: Front
    if name == SAGEMAKER:
        front = SageMakerFront(relay, _sagemaker(fronts.sagemaker))
    elif name == VERTEX:
        front = VertexFront(relay, _vertex(fronts.vertex), _model(fronts.vertex.default_model))
    else:
        return None
    return lambda: ServerConnection(relay, front)


def _sagemaker(settings: SageMakerSettings) -> SageMakerRoutes:
    return SageMakerRoutes(
        model=_model(settings.default_model or UNSPECIFIED),
        inference=settings.inference.value.encode(),
        ping=settings.ping.value.encode(),
        is_multi_model=settings.multi_model,
    )


def _vertex(settings: VertexSettings) -> VertexRoutes:
    # The rules on settings say that both are given where the front is enabled.
    health, predict = settings.health_route or "", settings.predict_route or ""
    return VertexRoutes(health=health.encode(), predict=predict.encode())


def _model(name: str | None) -> bytes:
    return (name or "").encode()
