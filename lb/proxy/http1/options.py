"""Limits and times of the HTTP/1.1 side."""

from __future__ import annotations

from dataclasses import dataclass, field

from lb.access.disclosure import NO_DISCLOSURE, Disclosure, disclosure
from lb.domain.client import NO_PROXIES, TrustedProxies
from lb.payloads.log import PayloadRules, payload_rules
from lb.proxy.queue import queue_options
from lb.proxy.split import split_rules
from lb.proxy.tracing import contexts_of
from lb.proxy.variants import variant_fields, variant_options
from lb.settings.listening import HalfCloseMode
from lb.settings.model import Settings
from lb.settings.values import field_name
from lb.wire.http1.limits import HeadLimits
from lb.wire.trace_context import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Http1Options:
    """What the relay needs of the settings. Bytes and seconds; 0 switches a limit off where it
    says so."""

    head: HeadLimits = field(default_factory=HeadLimits)
    """Limits of heads, of requests and of answers."""
    body_size: int = 0
    """Longest request body; 0 is no limit."""
    retained_size: int = 8 * 2**20
    """How much of a request is kept to be sent again."""
    buffer_size: int = 64 * 1024
    """Bytes that may wait to be written on a connection before its source is paused, and bytes
    of pipelined requests that may wait to be read."""
    connect_timeout_s: float = 1.0
    head_timeout_s: float = 10.0
    """From the first byte of a head to its end, and until a new connection sends something."""
    body_timeout_s: float = 30.0
    """Without a byte of an upload that we wait for, or of an answer taken by the client."""
    client_idle_s: float = 620.0
    upstream_idle_s: float = 30.0
    handshake_timeout_s: float = 10.0
    """TLS with a backend."""
    request_timeout_s: float = 0.0
    """From a request's head to the end of its answer; 0 is no limit."""
    aborts_on_half_close: bool = True
    """Whether a client that sends nothing more (FIN) is gone; else it gets its answers."""
    linger_s: float = 2.0
    """How long we go on reading, so that the client can take an early or final answer."""
    linger_size: int = 64 * 1024 * 1024
    """Bytes thrown away meanwhile at most. Large, since a client that sends its whole upload
    before it looks for the answer loses the answer if we stop; it costs time, not memory."""
    x_forwarded: bool = False
    forwarded: bool = False
    private_fields: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that we alone may send to backends: the clients' are
    dropped."""
    trusted_proxies: TrustedProxies = NO_PROXIES
    noted: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that the queue goes by."""
    deadline_header: bytes = b""
    """The name of the field with the time that a request may take; empty: there is none."""
    cors_origins: frozenset[bytes] = frozenset()
    """Origins whose pages may ask from browsers."""
    disclosure: Disclosure = NO_DISCLOSURE
    """Who learns how a request was served."""
    traces: Traces = Traces.OFF
    """What becomes of trace contexts."""
    payloads: PayloadRules | None = None
    """What the payload log samples; None: nothing."""
    variant_names: frozenset[bytes] = frozenset()
    """Names of models that variants serve."""
    split_models: frozenset[bytes] = frozenset()
    """Models whose batches may be cut."""


def http1_options(settings: Settings) -> Http1Options:
    """Read limits and times of the HTTP/1.1 side from settings."""
    limits, timeouts = settings.limits, settings.timeouts
    return Http1Options(
        head=HeadLimits(
            head_bytes=limits.head_bytes,
            line_bytes=limits.request_line_bytes,
            fields=limits.max_headers,
        ),
        body_size=limits.body_bytes,
        retained_size=limits.retained_body_bytes,
        connect_timeout_s=timeouts.connect,
        head_timeout_s=timeouts.head,
        body_timeout_s=timeouts.body_progress,
        client_idle_s=timeouts.client_idle,
        upstream_idle_s=timeouts.upstream_idle,
        request_timeout_s=timeouts.request,
        handshake_timeout_s=timeouts.handshake,
        aborts_on_half_close=settings.listen.half_close is HalfCloseMode.ABORT,
        private_fields=settings.private_fields,
        x_forwarded=settings.forwarded.has_x_forwarded,
        forwarded=settings.forwarded.has_forwarded,
        trusted_proxies=settings.listen.proxies,
        noted=queue_options(settings).noted | variant_fields(settings),
        deadline_header=field_name(settings.scheduling.deadline_header),
        cors_origins=frozenset(each.encode() for each in settings.access.cors_origins),
        disclosure=disclosure(settings.diagnostics),
        traces=contexts_of(settings.tracing),
        payloads=payload_rules(settings.payload_log),
        variant_names=frozenset(variant_options(settings).names),
        split_models=frozenset(split_rules(settings)),
    )
