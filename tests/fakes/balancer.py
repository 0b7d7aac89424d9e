"""The whole product with its listeners in the process of a test, for what has to look inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lb.domain.schedule import ModelBackendView
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.sockets import Listeners
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.relay import lanes_of


class Balancer:
    """A running product; metrics and admin API are off."""

    def __init__(self, settings: Settings) -> None:
        self.logs = Logs(settings)
        self.product: LoadBalancer = LoadBalancer(settings, self.logs)
        self.listener_set = ListenerSet(self.product, Listeners(settings), {})

    @property
    def accepted(self) -> int:
        """Connections of clients so far."""
        return sum(traffic.accepted for traffic in self.product.relay.meter.traffic)

    def model_backends(self) -> list[ModelBackendView]:
        """What is known of each scheduled model on each backend."""
        return lanes_of(self.product)

    def address(self, listener: str) -> str:
        """HOST:PORT of a listener."""
        return str(self.listener_set.listeners.addresses[listener])

    def reload(self, settings: Settings) -> None:
        """Listen as other settings say."""
        self.product.settings = settings
        self.listener_set.replace(Listeners(settings, self.listener_set.listeners.bound.values()))


@asynccontextmanager
async def running_balancer(tree: dict[str, Any]) -> AsyncIterator[Balancer]:
    """A balancer that has probed its backends, until the end of the block."""
    balancer = Balancer(Settings.model_validate(tree))
    product = balancer.product
    try:
        await product.control.start()
        await balancer.listener_set.open()
        yield balancer
    finally:
        balancer.listener_set.close()
        await product.aclose()
        balancer.logs.close()
