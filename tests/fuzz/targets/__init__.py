"""All targets by name."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    ask,
    blocks,
    bodies,
    certificates,
    codec,
    credentials,
    heads,
    hello,
    http1_relay,
    http2_relay,
    messages,
    proxy_headers,
    routes,
    sequences,
    settings_text,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        heads,
        bodies,
        http1_relay,
        codec,
        blocks,
        http2_relay,
        messages,
        hello,
        certificates,
        proxy_headers,
        credentials,
        routes,
        sequences,
        settings_text,
        ask,
    )
    for target in module.TARGETS
}
