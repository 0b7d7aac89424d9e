"""Settings of how long things may take and how much they may hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration, Size
from lb.settings.values import Count, PositiveCount


class TimeoutSettings(Section):
    """How long things may take."""

    connect: PositiveDuration = 1.0
    """Connecting to a backend, name resolution included. Then another backend is tried."""
    head: PositiveDuration = 10.0
    """From the first byte of a client's request to the end of its head, then 408."""
    body_progress: PositiveDuration = 30.0
    """The longest pause in which a client neither sends a byte of a body that it owes nor takes
    one of an answer that waits; then the exchange is cut."""
    stream_stalled: Duration = 300.0
    """How long payload of a gRPC stream may wait for a client, or a backend, that takes none of it;
    then the stream is reset, or the connection closed if nothing at all is read there. Slow
    readers are not stalled. 0 is no limit."""
    client_idle: PositiveDuration = 620.0
    """A client's connection without requests is closed after this. Longer than the idle time of
    the load balancers in front of us (600 s at GCP), so that they close first."""
    upstream_idle: PositiveDuration = 30.0
    """An HTTP/1.1 connection to a backend without requests is closed after this."""
    request: Duration = 0.0
    """From a request's head to the end of its answer, then 504 or DEADLINE_EXCEEDED; 0 is no
    limit, and only the client's own `grpc-timeout` rules. Model loads, language models and
    streams run long."""
    attempt: Duration = 0.0
    """How long an answer of one backend may take to begin, from the end of the request. Then
    another backend is tried, if the request may run twice (see `retry`) and there is one, else it
    goes on; 0 is no limit. To be well above what inferences take, since one that was only slow is
    computed twice."""
    handshake: PositiveDuration = 10.0
    """A TLS handshake, with clients and with backends."""


class LimitSettings(Section):
    """How much things may hold."""

    connections: Count = 0
    """Connections of clients at once. More wait to be accepted until others end. 0 is what the
    descriptors of the process (`ulimit -n`) are enough for: about half of them, which is also the
    most that is taken; the start-up line names it."""
    connections_per_client: Count = 0
    """Connections of one client at once, by its address (of IPv6 the first 64 bits), which behind
    trusted proxies is what their PROXY header says. More are closed at once; 0 is no limit. One
    ingress or NAT is one address."""
    head_bytes: Annotated[Size, Field(ge=1024, le=16 << 20)] = 32 << 10
    """Head of a request or an answer: request line and all fields, decoded on HTTP/2. More gets
    431 or RESOURCE_EXHAUSTED, or 502 from a backend."""
    request_line_bytes: Annotated[Size, Field(ge=256, le=16 << 20)] = 8 << 10
    """Request line of HTTP/1.1. More gets 414."""
    fields: Annotated[Count, Field(ge=8, le=10_000)] = 100
    """Header fields in a head. More gets 431 or RESOURCE_EXHAUSTED."""
    body_bytes: Size = 0
    """Body of one HTTP request, or one gRPC message. More gets 413 or RESOURCE_EXHAUSTED; 0 is
    no limit, as with Triton."""
    retained_body_bytes: Size = 8 << 20
    """How much of a request's body is kept, until its answer begins, so that it can be sent to
    another backend. A request that sent more is not repeated; nor are those that came when half of
    `memory_bytes` was held."""
    memory_bytes: Size = 0
    """All bytes held for requests and answers under way. Past it new requests are refused, then
    the largest holder is cut. 0 is a quarter of the memory limit of the container or machine, at
    most 512 MiB. With `ulimit -v` or `ulimit -d` it is never more than half of what the process may
    still allocate after its start."""
    concurrent_streams: Annotated[PositiveCount, Field(le=(1 << 31) - 1)] = 1024
    """gRPC calls at once on one connection of a client; the client queues the rest itself."""
    stream_window_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 1 << 20
    """How far a client may run ahead on one gRPC stream at first. A backend may by 65,535 bytes,
    until the client has shown that it reads."""
    stream_window_max_bytes: Annotated[Size, Field(ge=65_535, le=(1 << 31) - 1)] = 4 << 20
    """How far either may, as long as the other side keeps up."""
    frame_bytes: Annotated[Size, Field(ge=1 << 14, le=(1 << 24) - 1)] = 1 << 20
    """Largest HTTP/2 frame that we accept."""
    http_buffer_bytes: Annotated[Size, Field(ge=4 << 10, le=1 << 30)] = 64 << 10
    """Bytes that wait to be written on an HTTP/1.1 connection before its sender is paused."""
