"""Every flood, and what must become of it.

Times are scaled: the balancer under test has one short time-out for head, body and handshake.
Bounds on frames are those of the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.floods import frame_floods as frames
from tests.floods import slow_floods as slow
from tests.floods.play import Play

ADVERTISED_STREAMS = 1024
CALM = frozenset({"ENHANCE_YOUR_CALM"})
_UNREAD = frozenset({"closed", *CALM})
_MOST = {
    "rapid reset": 320,
    "rapid reset, unread": 320,
    "HPACK bomb": 5,
    "SETTINGS of 2,700 entries": 1,
    "DATA of one byte": 2200,
}
"""Where it differs from the rest of its group."""
_REFILL_PER_S = {"DATA of one byte": 100.0}
_OVER_TLS = (
    "rapid reset",
    "made-you-reset: WINDOW_UPDATE 0",
    "CONTINUATION, 16 kB each",
    "PING, unread",
    "DATA, empty",
)


@dataclass(frozen=True)
class Flood:
    """One flood and its bounds."""

    name: str
    play: Play
    is_cut: bool = True
    """The other side must end every connection of it."""
    most: int = 0
    """Units that may be accepted on one connection; 0: not counted."""
    refill_per_s: float = 20.0
    """How many more each second allows."""
    codes: frozenset[str] = frozenset()
    """GOAWAY codes or HTTP statuses that are right; empty: any. "closed" stands for none, which is
    all that a peer sees who does not read."""
    is_timed: bool = False
    """The connections live as long as the time-out, and at most `LATE_S` longer."""
    is_sampled: bool = False
    """Who takes nothing is looked at once per time-out, and its kernel takes a little more now and
    then: four times as long is right."""
    rss_limit: int = 10 << 20
    """By how much the balancer's resident memory may grow, in bytes."""
    tls: bool = False
    """Also played over TLS."""
    only_tls: bool = False


LATE_S = 1.5
"""Wheel, scheduler and a busy machine."""


def _frame_floods() -> list[Flood]:
    groups = (
        (frames.RESET_FLOODS, 150),
        (frames.BLOCK_FLOODS, 12),
        (frames.CONTROL_FLOODS, 320),
        (frames.DATA_FLOODS, 150),
    )
    return [
        Flood(
            name,
            play,
            most=_MOST.get(name, most),
            refill_per_s=_REFILL_PER_S.get(name, Flood.refill_per_s),
            codes=CALM if play.reads else _UNREAD,
            tls=name in _OVER_TLS,
        )
        for plays, most in groups
        for name, play in plays.items()
    ]


def _slow_floods() -> list[Flood]:
    plays = slow.SLOW_FLOODS

    def timed(name: str, codes: str = "", *, tls: bool = False) -> Flood:
        expected = frozenset(codes.split()) if codes else frozenset[str]()
        return Flood(name, plays[name], codes=expected, is_timed=True, tls=tls)

    return [
        timed("slow head, HTTP", "408", tls=True),
        timed("slow preface, gRPC"),
        timed("open header block, gRPC"),
        timed("silent, HTTP", "closed", tls=True),
        timed("silent, gRPC"),
        timed("no SETTINGS, gRPC"),
        timed("body stops, HTTP", "408"),
        Flood(
            "body of a byte now and then, HTTP", plays["body of a byte now and then, HTTP"], False
        ),
        # A gRPC stream may be silent as long as it likes: what it costs is looked at.
        Flood("request stream that stops, gRPC", plays["request stream that stops, gRPC"], False),
        Flood(
            "answer not read, HTTP",
            plays["answer not read, HTTP"],
            is_timed=True,
            is_sampled=True,
            tls=True,
        ),
        # Each holds one read of its backend, at most 256 kB, and what waited before it.
        Flood(
            "answer not read by 100, HTTP",
            plays["answer not read by 100, HTTP"],
            is_timed=True,
            is_sampled=True,
            rss_limit=45 << 20,
        ),
        Flood("answer read slowly, HTTP", plays["answer read slowly, HTTP"], False),
        *(
            Flood(name, play, is_timed=True, only_tls=True)
            for name, play in slow.HANDSHAKE_FLOODS.items()
        ),
        Flood("zero window", frames.zero_window, is_timed=True, is_sampled=True, tls=True),
        # The kernel takes the first bytes of dozens of the streams, as if they were read. Their
        # windows grow to 1 MiB then, and what comes within them is held, and counted as held.
        Flood(
            "TCP unread",
            frames.unread_answers,
            is_timed=True,
            is_sampled=True,
            tls=True,
            rss_limit=45 << 20,
        ),
    ]


def _many() -> list[Flood]:
    return [
        Flood("more streams than allowed", frames.too_many_streams, codes=CALM),
        Flood("pipelining", slow.pipeline, False),
        Flood("pipelining, unread", slow.pipeline_unread),
        Flood("connect and close", slow.connect_and_close, False, tls=True),
        Flood("connections held", slow.hold_connections, False),
        Flood("connections beyond the client's limit", slow.exceed_client_limit),
    ]


FLOODS: tuple[Flood, ...] = (*_frame_floods(), *_slow_floods(), *_many())
CASES: tuple[tuple[Flood, bool], ...] = (
    *((flood, False) for flood in FLOODS if not flood.only_tls),
    *((flood, True) for flood in FLOODS if flood.tls or flood.only_tls),
)
"""Every flood, and whether it is over TLS."""


def case_name(flood: Flood, is_tls: bool) -> str:
    """How a case is called in the table and on the command line."""
    return f"{flood.name} (TLS)" if is_tls and not flood.only_tls else flood.name
