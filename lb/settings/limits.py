"""Settings of how long things may take and how much they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from lb.settings.problems import Finding
from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration, Size, format_size
from lb.settings.values import Count, PositiveCount


class TimeoutSettings(Section):
    """How long things may take."""

    connect: PositiveDuration = 1.0
    """Time to connect to a backend, including name resolution; then another backend is tried.

    Set this when backends are far away, or name servers slow; otherwise an unreachable backend
    costs a request one second."""
    head: PositiveDuration = 10.0
    """From the first byte of a client's request to the end of its head, then 408.

    Set this when clients on slow links get 408; otherwise a slow head holds its connection for ten
    seconds."""
    body_progress: PositiveDuration = 30.0
    """Longest pause in which a client neither sends a byte of its body nor takes one of a waiting
    response; then the exchange is cut.

    Set this when clients pause in the middle of uploads; otherwise they are cut after 30
    seconds."""
    stream_stalled: Duration = 300.0
    """How long payload of a gRPC stream may wait for a peer that reads none of it. Then the stream
    is reset, or the connection closed if nothing at all is read. Slow readers are not stalled. 0 is
    no limit.

    Set this when clients stop reading on purpose for minutes; otherwise their streams are reset."""
    client_idle: PositiveDuration = 620.0
    """A client's connection without requests is closed after this. The default is above the idle
    time of cloud load balancers (600 s at GCP), which should close first.

    Set this when idle connections use up descriptors, or a proxy in front of us keeps them longer;
    otherwise they last ten minutes."""
    upstream_idle: PositiveDuration = 30.0
    """An HTTP/1.1 connection to a backend without requests is closed after this.

    Set this when a server or firewall closes idle connections earlier; otherwise requests meet
    closed connections and are retried."""
    request: Duration = 0.0
    """From a request's head to the end of its response, then 504 or DEADLINE_EXCEEDED; 0 is no
    limit but the client's own `grpc-timeout`. Model loads and streams run long.

    Set this when clients wait for ever on requests that hang; otherwise only their own deadlines
    count."""
    attempt: Duration = 0.0
    """How long a backend may take to begin its response, from the end of the request. Then another
    backend is tried, if the request may run twice (see `retry`); else it goes on. 0 is no limit. It
    should be well above normal latencies, since a slow request is then computed twice.

    Set this when backends hang without closing connections; otherwise probes must find them
    first."""
    handshake: PositiveDuration = 10.0
    """How long a TLS handshake may take, with clients and with backends.

    Set this when connections without a finished handshake use up `limits.max_connections`;
    otherwise they last ten seconds."""


class LimitSettings(Section):
    """How much clients may use."""

    max_connections: Count = 0
    """Connections of clients at once; more wait to be accepted. 0 is half of the process's
    descriptors (`ulimit -n`) beside some 250, which is also the most; the start-up line names it.

    Set this when other programs need the memory or descriptors; otherwise descriptors are the
    limit."""
    max_connections_per_client: Count = 0
    """Connections of one client at once, by its address (for IPv6 its first 64 bits), or the
    address in its PROXY header. More are closed at once; 0 is no limit. One ingress or NAT is one
    address.

    Set this when one client can take all connections; otherwise the others then cannot connect."""
    head_bytes: Annotated[Size, Field(ge=1024, le=16 << 20)] = 32 << 10
    """Size of the head of a request or response: request line and all headers, decoded on HTTP/2. A
    larger one gets 431 or RESOURCE_EXHAUSTED, or 502 from a backend.

    Set this when large cookies or tokens get 431; otherwise 32 KiB are the limit."""
    request_line_bytes: Annotated[Size, Field(ge=256, le=16 << 20)] = 8 << 10
    """Size of the request line of HTTP/1.1; a longer one gets 414.

    Set this when clients of a `generic` backend send long queries and get 414; otherwise 8 KiB are
    the limit."""
    max_headers: Annotated[Count, Field(ge=8, le=10_000)] = 100
    """Headers of a request or response; more get 431 or RESOURCE_EXHAUSTED.

    Set this when proxies in front of us add so many headers that requests get 431; otherwise 100
    are the limit."""
    body_bytes: Size = 0
    """Size of one HTTP request body, or one gRPC message; more gets 413 or RESOURCE_EXHAUSTED. 0 is
    no limit, as with Triton.

    Set this when strangers can send requests; otherwise a request may be as large as Triton
    takes."""
    retained_body_bytes: Size = 8 << 20
    """How much of a request's body is kept until its response begins, so that it can be retried; on
    streams, of all requests without a response.
    Larger requests are not retried, nor those that arrive while half of `memory_bytes` is held.

    Set this when requests above 8 MiB must survive the loss of a backend; otherwise they fail with
    it."""
    memory_bytes: Size = 0
    """Bytes held for all requests and responses. From seven eighths on, requests end that hold far
    more than others, the largest first. Where none does, new ones are refused. Clients that hold
    far more in all than a refused one then lose their youngest requests. 0 is a quarter of the
    memory of the container or machine, at most 512 MiB. It is never more than half of what
    `ulimit -v` or `ulimit -d` leaves after the start.

    Set this when requests are refused for memory (`reason="memory"`) while there is more; otherwise
    the default suits."""
    max_concurrent_streams: Annotated[PositiveCount, Field(le=(1 << 31) - 1)] = 1024
    """gRPC calls at once on one connection of a client; the client queues the rest itself.

    Set this when a client sends more calls over one connection than that; otherwise they wait in
    the client."""
    stream_window_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 1 << 20
    """HTTP/2 flow control window of a new gRPC stream: what a client may send before the backend
    has read any. A backend starts with 65,535 bytes until its client reads.

    Set this when requests above 1 MiB come from far away and upload slowly; otherwise each costs
    further round trips."""
    stream_window_max_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 4 << 20
    """Largest window that a gRPC stream grows to while its reader keeps up, in both directions.

    Set this when one long stream does not fill a fast and distant link; otherwise 4 MiB per round
    trip are the limit."""

    def broken_rules(self) -> Iterator[Finding]:
        """Smaller limits fit into larger ones; 0 is no bound."""
        for lower, upper in (
            ("request_line_bytes", "head_bytes"),
            ("stream_window_bytes", "stream_window_max_bytes"),
            ("stream_window_max_bytes", "memory_bytes"),
        ):
            low, high = getattr(self, lower), getattr(self, upper)
            if low and high and low > high:
                yield (
                    (upper,),
                    f"{format_size(high)} is less than limits.{lower} ({format_size(low)})",
                )
