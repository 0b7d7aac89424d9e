"""Everything in a running product that comes from settings, to be compared."""

from __future__ import annotations

from typing import Any

from lb.runtime.wiring import Product
from tests.fakes.relay import relay_configuration


def configuration_of(product: Product) -> dict[str, Any]:
    """What the parts of a product were told, as values that can be compared."""
    rules = product.access.gate.rules
    return {
        **relay_configuration(product),
        "settings": product.settings,
        "members": [record.member for record in product.directory.records],
        "policy": type(product.directory.policy),
        "pickers": [type(each.policy) for each in product.directory.ref.current.placements],
        "ceiling": (product.ledger.ceiling, product.ledger.short_at),
        "models": product.meter.max_models,
        "scaling": product.scaling.scaling.budget_s,
        "table": (product.models.refresh_s, product.restorer.is_on),
        "judgement": product.directory.passive.rules,
        "ramps": product.directory.ramps.rules,
        "askers": [asker.connect_timeout_s for asker in product.askers],
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
        "plans": product.directory.planner.rules,
        "pending": product.readers.load.interval_s,
        "warm_up": (product.warm_up.is_on, product.warm_up.timeout_s),
        "discovery": (
            [source.name for source in product.discovery._sources],
            product.discovery._names.interval_s,
            product.directory.leaving_s,
            product.membership.most,
        ),
    }
