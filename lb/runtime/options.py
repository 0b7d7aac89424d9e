"""What the settings mean for the data plane: its options, as whole immutable values.

A reload compares them with those in force, and swaps what differs.
"""

from __future__ import annotations

from typing import Final

from lb.balancing.sequences import Affinity
from lb.domain.hedge import HedgeRules
from lb.domain.retry import MIN_RETRIES_PER_S, RetryRules
from lb.proxy.attempt_timeout import AttemptTimes
from lb.proxy.dispatch import DispatchOptions
from lb.proxy.fan_out.options import FanOutOptions
from lb.proxy.http1.options import Http1Options
from lb.proxy.http2.options import Http2Options
from lb.proxy.steps import HASH_BALANCE_FACTOR, SequenceRules
from lb.runtime.access import credential_fields
from lb.runtime.scheduling import header, queue_options
from lb.runtime.security import private_fields
from lb.settings.listening import HalfCloseMode
from lb.settings.model import ForwardedMode, Settings
from lb.settings.retry import RetryMode
from lb.wire.http1.limits import HeadLimits

_X_FORWARDED: Final = (ForwardedMode.X_FORWARDED, ForwardedMode.BOTH)
_FORWARDED: Final = (ForwardedMode.FORWARDED, ForwardedMode.BOTH)


def http1_options(settings: Settings) -> Http1Options:
    """Limits and times of the HTTP/1.1 side."""
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
        private_fields=private_fields(settings) | credential_fields(settings),
        x_forwarded=settings.forwarded in _X_FORWARDED,
        forwarded=settings.forwarded in _FORWARDED,
        trusted_proxies=settings.listen.proxies,
        noted=queue_options(settings).noted,
        deadline_header=header(settings.scheduling.deadline_header),
    )


def http2_options(settings: Settings) -> Http2Options:
    """Limits and times of the HTTP/2 side."""
    limits, timeouts = settings.limits, settings.timeouts
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
        private_fields=private_fields(settings) | credential_fields(settings),
        x_forwarded=settings.forwarded in _X_FORWARDED,
        forwarded=settings.forwarded in _FORWARDED,
        trusted_proxies=settings.listen.proxies,
        noted=queue_options(settings).noted,
    )


def dispatch_options(settings: Settings) -> DispatchOptions:
    """How requests are repeated, wait, and are bound to backends."""
    retry, sequences = settings.retry, settings.sequences
    never = frozenset(
        name.encode() for name, own in settings.models.items() if own.retry is RetryMode.NEVER
    )
    return DispatchOptions(
        retry=RetryRules(
            max_attempts=retry.attempts,
            share=retry.budget,
            floor=MIN_RETRIES_PER_S if retry.budget else 0.0,
            never=never,
        ),
        queue=queue_options(settings),
        sequences=SequenceRules(
            limit=sequences.max_open,
            affinity=Affinity(sequences.affinity.value),
            bound=HASH_BALANCE_FACTOR,
        ),
    )


def attempt_times(settings: Settings) -> AttemptTimes:
    """How long answers may take to begin."""
    own = {name.encode(): each.attempt_timeout for name, each in settings.models.items()}
    return AttemptTimes(
        common=settings.timeouts.attempt,
        models={name: seconds for name, seconds in own.items() if seconds is not None},
    )


def hedge_rules(settings: Settings) -> HedgeRules | None:
    """When requests are sent to a second backend; None: never."""
    own = settings.hedging
    if not own.enabled:
        return None
    return HedgeRules(quantile=own.quantile, share=own.max_ratio)


def fan_out_options(settings: Settings) -> FanOutOptions:
    """How requests that concern all backends are carried out."""
    fan_out = settings.fan_out
    return FanOutOptions(
        rolling=fan_out.rolling,
        deadline_s=fan_out.deadline,
        read_timeout_s=fan_out.read_timeout,
    )
