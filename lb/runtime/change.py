"""From the settings in force to other ones, while requests are under way.

All that can fail is done first and beside what runs (`prepare`): files are read, sockets bound.
Then everything is swapped within one turn of the event loop (`Change.apply`), which cannot fail:
until then the process goes by the old settings, and from then on by the new ones, as if started
with them.

Whoever adds a setting has it applied here, too; `tests/property/test_reload.py` compares the parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from lb.balancing.policies import make_policy
from lb.control.plans import Planner
from lb.domain.errors import LoadBalancerError
from lb.net.listeners import ListenErrors
from lb.runtime.access import Access, make_access
from lb.runtime.endpoints import Bound, Listeners
from lb.runtime.judgement import apply_judgement
from lb.runtime.logs import Logs, open_access_log
from lb.runtime.options import (
    attempt_times,
    dispatch_options,
    fan_out_options,
    hedge_rules,
    http1_options,
    http2_options,
)
from lb.runtime.scheduling import plan_rules
from lb.runtime.security import Security, make_security
from lb.runtime.wiring import Product, request_sink
from lb.settings.model import Settings
from lb.settings.reporting import AccessLogMode
from lb.telemetry.line_writer import LineWriter

_T = TypeVar("_T")


class ChangeRefused(LoadBalancerError):
    """Other settings cannot be applied; nothing has changed. The message has a line per reason."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


@dataclass(slots=True, kw_only=True)
class Change:
    """Everything that other settings need and that could fail, made beforehand."""

    settings: Settings
    security: Security
    access: Access
    access_log: LineWriter | None
    listeners: Listeners

    def apply(self, product: Product, logs: Logs) -> LineWriter | None:
        """Bring all parts in line, but the listening sockets (`Doors.replace`).

        Returns:
            The access log that is to be closed, which takes up to a second.
        """
        old, new = product.settings, self.settings
        product.settings = new
        _apply_limits(product)
        gate = product.access.gate
        product.access.replace(self.access)
        closing = logs.replace(new, self.access_log)
        requests = request_sink(new, logs, product.meter, product.rng)
        product.dispatcher.configure(dispatch_options(new), self.access.gate, requests)
        _apply_options(product, heads_differ=gate is not self.access.gate)
        if old.balancing != new.balancing:
            policy = make_policy(new.balancing.policy.value, product.rng)
            product.directory.use_policy(policy, time.monotonic())
        product.readers.load.use(new.scheduling.load_poll_interval)
        if (plans := plan_rules(new)) != plan_rules(old):
            product.directory.use_planner(Planner(plans), time.monotonic())
        apply_judgement(product.directory, new, time.monotonic())
        product.security.replace(self.security)
        product.discovery.configure(new)
        return closing

    def discard(self, logs: Logs) -> None:
        """Undo what was prepared: it is not wanted after all."""
        self.listeners.discard()
        if self.access_log is not None and self.access_log is not logs.access:
            self.access_log.close()


def prepare(product: Product, logs: Logs, known: Iterable[Bound], settings: Settings) -> Change:
    """Make what other settings need. Takes a while, and may run in a thread.

    Args:
        product: goes by the settings in force.
        logs: likewise.
        known: its listening sockets.
        settings: the other ones.

    Raises:
        ChangeRefused: with every reason; nothing is left of what was made.
    """
    reasons: list[str] = []

    def attempt(make: Callable[[], _T]) -> list[_T]:
        try:
            return [make()]
        except ListenErrors as error:
            reasons.extend(map(str, error.errors))
        except LoadBalancerError as error:
            reasons.append(str(error))
        return []

    security = attempt(lambda: make_security(settings, product.security))
    access = attempt(lambda: make_access(settings, product.access))
    access_log = attempt(lambda: _access_log(product.settings, settings, logs))
    listeners = attempt(lambda: Listeners(settings, known))
    if reasons:
        for each in listeners:
            each.discard()
        for writer in access_log:
            if writer is not None and writer is not logs.access:
                writer.close()
        raise ChangeRefused(reasons)
    return Change(
        settings=settings,
        security=security[0],
        access=access[0],
        access_log=access_log[0],
        listeners=listeners[0],
    )


def _access_log(old: Settings, new: Settings, logs: Logs) -> LineWriter | None:
    def needs(settings: Settings) -> tuple[object, ...]:
        log = settings.access_log
        return (log.path, log.mode is AccessLogMode.OFF)

    return logs.access if needs(old) == needs(new) else open_access_log(new)


def _apply_limits(product: Product) -> None:
    """What is one number each."""
    settings = product.settings
    product.ledger.resize(product.memory.ceiling(settings.limits.memory_bytes))
    product.meter.max_models = settings.metrics.model_labels
    product.attempt_timeout.times = attempt_times(settings)
    product.hedger.use(hedge_rules(settings))
    product.monitor.wake()
    product.scaling.scaling.budget_s = settings.scaling.latency
    product.models.refresh_s = settings.model_table.refresh
    product.restorer.is_on = settings.model_table.restore
    product.warm_up.is_on = settings.warm_up.enabled
    product.warm_up.timeout_s = settings.warm_up.timeout
    for asker in product.askers:
        asker.connect_timeout_s = settings.timeouts.connect
    crowd, limit = product.http1.parts.crowd, settings.limits.max_connections_per_client
    if crowd.limit != limit:
        present = [server.client.address for server in product.http1.servers]
        present += [server.client.address for server in product.http2.servers]
        crowd.resize(limit, present)


def _apply_options(product: Product, *, heads_differ: bool) -> None:
    """The options of the data plane; every connection looks at them when they are others."""
    settings = product.settings
    product.fan_out.options = fan_out_options(settings)
    http1, http2 = http1_options(settings), http2_options(settings)
    if heads_differ or http1 != product.http1.options:
        product.http1.configure(http1)
    if heads_differ or http2 != product.http2.options:
        product.http2.configure(http2)
