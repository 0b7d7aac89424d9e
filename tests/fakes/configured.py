"""Everything in a running product that comes from settings, to be compared."""

from __future__ import annotations

from typing import Any

from lb.runtime.wiring import Product


def configuration_of(product: Product) -> dict[str, Any]:
    """What the parts of a product were told, as values that can be compared."""
    table = product.dispatcher.steps.table
    rules = product.access.gate.rules
    sink = product.dispatcher.requests
    return {
        "settings": product.settings,
        "http1": product.http1.options,
        "http2": product.http2.options,
        "fan_out": product.fan_out.options,
        "kinds": (product.http1.kinds, product.http2.kinds),
        "crowd": (product.http1.crowd.limit, product.http2.crowd.limit),
        "members": [record.member for record in product.directory.records],
        "policy": type(product.directory.policy),
        "pickers": [type(each.policy) for each in product.directory.ref.current.placements],
        "ceiling": (product.ledger.ceiling, product.ledger.short_at),
        "models": product.meter.max_models,
        "attempts": product.dispatcher.max_attempts,
        "scaling": product.scaling.scaling.budget_s,
        "sequences": (table.limit, table.affinity, table.bound),
        "table": (product.models.refresh_s, product.restorer.is_on),
        "judgement": (product.directory.passive.rules, product.directory.passive.least),
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
        "gates": product.dispatcher.gate is product.access.gate,
        "tokens": product.access.tokens.book.tokens,
        "admin": (product.access.admin_rules.tokens is None, product.access.admin_rules.hosts),
        "servers": {
            name: (tls.options, tls.alpn) for name, tls in product.security.servers.items()
        },
        "clients": {(tls.settings, tls.protocol) for tls in product.security.clients},
        "sink": type(sink).__name__,
        "budget": (product.dispatcher.reruns.budget.share, product.dispatcher.reruns.budget.floor),
        "never": product.dispatcher.reruns.never,
        "patience": product.patience.times,
        "hedging": product.hedger.rules,
        "plans": product.directory.planner.rules,
        "queue": product.dispatcher.queue.options,
        "pending": product.readers.load.interval_s,
        "warm_up": (product.warm_up.is_on, product.warm_up.timeout_s),
        "discovery": (
            [source.name for source in product.discovery._sources],
            product.discovery._wait_s,
            product.discovery._names.interval_s,
            product.directory.leaving_s,
            product.membership.most,
        ),
    }
