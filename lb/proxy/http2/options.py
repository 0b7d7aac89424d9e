"""What the configuration says of the HTTP/2 side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lb.access.disclosure import NO_DISCLOSURE, Disclosure, disclosure
from lb.domain.client import NO_PROXIES, TrustedProxies
from lb.payloads.log import PayloadRules, payload_rules
from lb.proxy.queue import queue_options
from lb.proxy.split import split_rules
from lb.proxy.tracing import contexts_of
from lb.proxy.variants import variant_fields, variant_options
from lb.settings.model import Cancellation, Settings
from lb.wire.http2 import frames as fr
from lb.wire.trace_context import Traces

_DEADLINES: Final = frozenset({b"grpc-timeout"})
"""gRPC servers cancel calls by themselves when these have passed."""
FRAME_SIZE: Final = 2**20
"""Bytes of payload that peers may send in one frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Options:
    """Limits and times of the HTTP/2 side. Bytes and seconds."""

    concurrent_streams: int = 1024
    stream_window: int = 2**20
    stream_window_max: int = 4 * 2**20
    answer_window: int = fr.DEFAULT_WINDOW
    """Window of an answer, until its reader has taken half of it. Small, so that a hundred streams
    whose windows never open hold 6 MiB and not 100."""
    head_size: int = 32 * 1024
    """Decoded size of a request head; larger ones are answered RESOURCE_EXHAUSTED."""
    retained_size: int = 8 * 2**20
    connect_timeout_s: float = 1.0
    head_timeout_s: float = 10.0
    """Until a new client has sent its preface and SETTINGS."""
    client_idle_s: float = 620.0
    fields: int = 100
    """Header fields of a request; more are answered RESOURCE_EXHAUSTED."""
    message_size: int = 0
    """Longest gRPC message of a request; 0 is no limit."""
    handshake_timeout_s: float = 10.0
    """TLS with a backend."""
    stream_stalled_s: float = 300.0
    """How long payload may wait for a peer that takes none of it; 0 is no limit."""
    request_timeout_s: float = 0.0
    """From a request's head to the end of its answer; 0 is no limit."""
    x_forwarded: bool = False
    forwarded: bool = False
    private_fields: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that we alone may send to backends: the clients' are
    dropped."""
    withholds_cancellation: bool = False
    """Tritons compute unary inferences that nobody waits for any more, instead of being told."""
    trusted_proxies: TrustedProxies = NO_PROXIES
    noted: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that the queue goes by."""
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

    def server_settings(self) -> dict[int, int]:
        """What clients are told in SETTINGS."""
        return {
            **self._common_settings(),
            fr.SETTINGS_INITIAL_WINDOW_SIZE: self.stream_window,
            fr.SETTINGS_MAX_CONCURRENT_STREAMS: self.concurrent_streams,
        }

    def client_settings(self) -> dict[int, int]:
        """What backends are told in SETTINGS."""
        return {
            **self._common_settings(),
            fr.SETTINGS_INITIAL_WINDOW_SIZE: self.answer_window,
            fr.SETTINGS_ENABLE_PUSH: 0,
        }

    def _common_settings(self) -> dict[int, int]:
        return {
            fr.SETTINGS_HEADER_TABLE_SIZE: 0,
            fr.SETTINGS_MAX_FRAME_SIZE: FRAME_SIZE,
            fr.SETTINGS_MAX_HEADER_LIST_SIZE: self.head_size,
        }


def http2_options(settings: Settings) -> Http2Options:
    """Read limits and times of the HTTP/2 side from settings."""
    limits, timeouts = settings.limits, settings.timeouts
    withholds = settings.cancellation is Cancellation.WITHHOLD
    return Http2Options(
        concurrent_streams=limits.max_concurrent_streams,
        stream_window=limits.stream_window_bytes,
        stream_window_max=limits.stream_window_max_bytes,
        head_size=limits.head_bytes,
        fields=limits.max_headers,
        message_size=limits.body_bytes,
        retained_size=limits.retained_body_bytes,
        connect_timeout_s=timeouts.connect,
        head_timeout_s=timeouts.head,
        client_idle_s=timeouts.client_idle,
        stream_stalled_s=timeouts.stream_stalled,
        request_timeout_s=timeouts.request,
        handshake_timeout_s=timeouts.handshake,
        private_fields=settings.private_fields | (_DEADLINES if withholds else frozenset()),
        withholds_cancellation=withholds,
        x_forwarded=settings.forwarded.has_x_forwarded,
        forwarded=settings.forwarded.has_forwarded,
        trusted_proxies=settings.listen.proxies,
        noted=queue_options(settings).noted | variant_fields(settings),
        disclosure=disclosure(settings.diagnostics),
        traces=contexts_of(settings.tracing),
        payloads=payload_rules(settings.payload_log),
        variant_names=frozenset(variant_options(settings).names),
        split_models=frozenset(split_rules(settings)),
    )
