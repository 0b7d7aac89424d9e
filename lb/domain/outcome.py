"""How an attempt ended, and the reasons we give for answers that we made ourselves."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Outcome(Enum):
    """How one attempt at one backend ended."""

    ANSWERED = "answered"
    """The backend gave a complete answer, whatever its status."""
    CONNECT_REFUSED = "connect_refused"
    """Refused or reset while connecting: nothing was sent, and the port is closed."""
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_FAILED = "connect_failed"
    """Any other failure to connect: no route, name not found, handshake."""
    REFUSED = "refused"
    """The backend says that it did not process it: REFUSED_STREAM, or above GOAWAY's last id."""
    NOT_HERE = "not_here"
    """The backend says so in words of its own: it does not have the model, or takes nothing."""
    BROKEN = "broken"
    """The backend answers that its device, or one of its processes, is broken."""
    STALE = "stale"
    """A reused connection closed before any byte of the answer: the keep-alive race."""
    LOST = "lost"
    """The connection was lost after the request was sent, before the answer was complete."""
    RESET = "reset"
    """The backend reset the stream after it began to process it."""
    CUT_OFF = "cut_off"
    """The backend shuts down, and ended it: before it began, or while it ran."""
    PROTOCOL_ERROR = "protocol_error"
    """The backend broke HTTP framing."""
    HEAD_TOO_LARGE = "head_too_large"
    """The head of the answer, or its trailers, are larger than we take: most likely they repeat
    what the request says."""
    STALLED = "stalled"
    """The backend stopped taking the request."""
    SILENT = "silent"
    """The backend owes an answer, and its port is down since probes are not answered either."""
    LATE = "late"
    """The answer did not begin in the time for one attempt."""
    DEADLINE = "deadline"
    """The client's deadline passed."""
    CANCELLED = "cancelled"
    """The client went away or cancelled."""
    OVERTAKEN = "overtaken"
    """Another backend, which was asked as well, was the first to answer."""


class Reason(Enum):
    """Why we answered ourselves, or cut an exchange short: log field and metric label.

    In the style of Envoy's response flags: nobody should take our errors for Triton's.
    """

    NO_BACKEND = "no_backend"
    BACKENDS_FULL = "backends_full"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_FAILED = "connect_failed"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_LOST = "upstream_lost"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_PROTOCOL = "upstream_protocol"
    ANSWER_HEAD_TOO_LARGE = "answer_head_too_large"
    """The head of its answer, or the trailers, are larger than we take."""
    UPSTREAM_STALLED = "upstream_stalled"
    UPSTREAM_SILENT = "upstream_silent"
    """It answers nothing any more, probes included."""
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_LATE = "upstream_late"
    """It did not answer in the time for one attempt."""
    DEADLINE = "deadline"
    CLIENT_GONE = "client_gone"
    OVERTAKEN = "overtaken"
    """Of an attempt: another one answered first."""
    BAD_REQUEST = "bad_request"
    HANDSHAKE = "handshake"
    """TLS with a client failed, or took too long."""
    PROXY_HEADER = "proxy_header"
    """A trusted proxy did not begin with a good PROXY header, or took too long."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    """One client's limit of connections was reached."""
    HEAD_TOO_LARGE = "head_too_large"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED = "unsupported"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    CLIENT_STALLED = "client_stalled"
    """The client took nothing of its answer for too long."""
    FLOOD = "flood"
    """The client did something too often that costs us more than itself."""
    MEMORY = "memory"
    """The process-wide ceiling on bytes held was reached."""
    DRAINING = "draining"
    UNAUTHENTICATED = "unauthenticated"
    """No valid token."""
    FORBIDDEN = "forbidden"
    """The token does not allow it."""
    CONTROL_REFUSED = "control_refused"
    """The client may not change servers."""
    RATE_LIMITED = "rate_limited"
    """The client sent more requests per second than it may."""
    CONCURRENCY_LIMITED = "concurrency_limited"
    """The client has as many requests under way as it may."""
    QUEUE_FULL = "queue_full"
    """As many requests wait for the model as may."""
    QUEUE_SHED = "queue_shed"
    """It waited, and made room for one of a higher priority."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited for as long as requests may."""
    SEQUENCE_LOST = "sequence_lost"
    """The backend that ran the request's sequence is gone, and what it remembered with it."""
    SEQUENCE_ID = "sequence_id"
    """The model knows its sequences by numbers, and the request has a text."""
    BACKENDS_DIFFER = "backends_differ"
    """The backends contradict each other where a client expects one answer."""
    NOT_MERGED = "not_merged"
    """The answers to the parts of a batch cannot be joined."""
    LOOP = "loop"
    """The request has passed this load balancer before, or too many of them."""
    INTERNAL = "internal"


OF_CLIENTS: Final = frozenset({
    Reason.CLIENT_GONE, Reason.BAD_REQUEST, Reason.HEAD_TOO_LARGE, Reason.ANSWER_HEAD_TOO_LARGE,
    Reason.BODY_TOO_LARGE, Reason.UNSUPPORTED, Reason.HEAD_TIMEOUT, Reason.BODY_TIMEOUT,
    Reason.CLIENT_STALLED, Reason.FLOOD, Reason.UNAUTHENTICATED, Reason.FORBIDDEN,
    Reason.CONTROL_REFUSED, Reason.RATE_LIMITED, Reason.CONCURRENCY_LIMITED, Reason.SEQUENCE_ID,
})  # fmt: skip
"""What a client may cause whatever the load balancer and the backends do."""
NO_ALARM: Final = OF_CLIENTS | {Reason.DEADLINE, Reason.OVERTAKEN}
"""What people who look after the service need not be called for: the client may have set a deadline
that nobody can meet."""

OUTCOME_REASONS = {
    Outcome.CONNECT_REFUSED: Reason.CONNECT_REFUSED,
    Outcome.CONNECT_TIMEOUT: Reason.CONNECT_TIMEOUT,
    Outcome.CONNECT_FAILED: Reason.CONNECT_FAILED,
    Outcome.REFUSED: Reason.UPSTREAM_REFUSED,
    Outcome.NOT_HERE: Reason.UPSTREAM_REFUSED,
    Outcome.BROKEN: Reason.UPSTREAM_BROKEN,
    Outcome.STALE: Reason.UPSTREAM_LOST,
    Outcome.LOST: Reason.UPSTREAM_LOST,
    Outcome.RESET: Reason.UPSTREAM_RESET,
    Outcome.CUT_OFF: Reason.UPSTREAM_RESET,
    Outcome.PROTOCOL_ERROR: Reason.UPSTREAM_PROTOCOL,
    Outcome.HEAD_TOO_LARGE: Reason.ANSWER_HEAD_TOO_LARGE,
    Outcome.STALLED: Reason.UPSTREAM_STALLED,
    Outcome.SILENT: Reason.UPSTREAM_SILENT,
    Outcome.LATE: Reason.UPSTREAM_LATE,
    Outcome.DEADLINE: Reason.DEADLINE,
    Outcome.CANCELLED: Reason.CLIENT_GONE,
    Outcome.OVERTAKEN: Reason.OVERTAKEN,
}
"""The reason of the answer that we make when an attempt ends so and is not repeated."""

UNREACHED: Final = frozenset(
    {Outcome.CONNECT_REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED}
)
"""There was no connection to the backend."""
