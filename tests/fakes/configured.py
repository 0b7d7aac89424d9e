"""Everything in a running product that comes from settings, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lb.runtime.wiring import LoadBalancer
from tests.fakes.relay import relay_configuration

_OF_THE_PROCESS = "service.instance.id"


def _lasting(resource: Mapping[str, str]) -> dict[str, str]:
    """What is told of the resource but for the process."""
    return {name: value for name, value in resource.items() if name != _OF_THE_PROCESS}


def configuration_of(product: LoadBalancer) -> dict[str, Any]:
    """What the parts of a product were told, as values that can be compared."""
    rules = product.access.gate.rules
    exporter = product.exporter.options
    return {
        **relay_configuration(product),
        "settings": product.settings,
        "members": [record.member for record in product.control.directory.records],
        "policy": type(product.control.directory.policy),
        "pickers": [type(each.policy) for each in product.control.directory.ref.current.placements],
        "ceiling": (product.relay.memory_budget.ceiling, product.relay.memory_budget.short_at),
        "models": product.relay.meter.max_models,
        "scaling": (product.control.scaling.options, product.control.scaling.scaling.budget_s),
        "standby": product.control.standby.options,
        "table": (product.control.models.options, product.control.restorer.options),
        "judgement": product.control.directory.passive.rules,
        "ramps": product.control.directory.ramps.rules,
        "askers": [
            role.backend_client.connect_timeout_s for role in (product.control, product.relay)
        ],
        "gate": (
            rules.control,
            rules.needs_token,
            rules.header,
            rules.open_health,
            rules.strict_shared_memory,
            rules.proxies,
            [(rule.limit.terms, rule.by_token, rule.by_header) for rule in rules.limits],
        ),
        "tokens": product.access.tokens.book.tokens,
        "admin": (product.access.admin_rules.tokens is None, product.access.admin_rules.hosts),
        "servers": {
            name: (tls.options, tls.alpn) for name, tls in product.security.servers.items()
        },
        "clients": {(tls.settings, tls.protocol) for tls in product.security.clients},
        "plans": product.control.directory.planner.rules,
        "pending": product.control.load.interval_s,
        "placement": (
            product.control.placement.options,
            product.control.placement.planner.rules,
        ),
        "exporter": replace(exporter, resource=_lasting(exporter.resource)),
        "warm_up": product.control.warm_up.options,
        "discovery": (
            [source.name for source in product.control.discovery._sources],
            product.control.discovery._names.interval_s,
            product.control.directory.removal_s,
            product.control.membership.most,
        ),
    }
