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
_SIZE = frozenset({"FRAME_SIZE_ERROR", *CALM})
"""RFC 9113 6.3: only the stream's error, but who sends it once will send it again."""


@dataclass(frozen=True)
class Flood:
    """One flood and its bounds."""

    name: str
    play: Play
    is_cut: bool = True
    """The other side must end every connection of it."""
    most: int = 0
    """Units that may be accepted on one connection; 0: not counted."""
    codes: frozenset[str] = frozenset()
    """GOAWAY codes or HTTP statuses that are right; empty: any. "closed" stands for none."""
    is_timed: bool = False
    """The connections live as long as the time-out, and at most `LATE_S` longer."""
    is_sampled: bool = False
    """Who takes nothing is looked at once per time-out: twice as long is right."""
    tls: bool = False
    """Also played over TLS."""
    only_tls: bool = False


LATE_S = 1.5
"""Wheel, scheduler and a busy machine."""


def _frame_floods() -> list[Flood]:
    resets = {**frames.RESET_FLOODS}
    tls = {"rapid reset", "made-you-reset: WINDOW_UPDATE 0", "PING, unread", "DATA, empty"}
    tls.add("CONTINUATION, 16 kB each")
    floods = []
    for name, play in resets.items():
        most = 320 if name.startswith("rapid") else 150
        most = ADVERTISED_STREAMS + 150 if name.endswith("itself") else most
        codes = _SIZE if name.endswith("4 bytes") else CALM
        floods.append(Flood(name, play, most=most, codes=codes, tls=name in tls))
    for name, play in frames.BLOCK_FLOODS.items():
        most = 5 if name.startswith("HPACK") else 12
        floods.append(Flood(name, play, most=most, tls=name in tls))
    for name, play in frames.CONTROL_FLOODS.items():
        most = 1 if "2,700" in name else 320
        floods.append(Flood(name, play, most=most, codes=CALM, tls=name in tls))
    for name, play in frames.DATA_FLOODS.items():
        is_cut = name != "DATA of one byte"
        floods.append(Flood(name, play, is_cut, 150 if is_cut else 0, CALM, tls=name in tls))
    return floods


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
        timed("body stops, gRPC"),
        Flood(
            "answer not read, HTTP",
            plays["answer not read, HTTP"],
            is_timed=True,
            is_sampled=True,
            tls=True,
        ),
        Flood("answer read slowly, HTTP", plays["answer read slowly, HTTP"], False),
        *(
            Flood(name, play, is_timed=True, only_tls=True)
            for name, play in slow.HANDSHAKE_FLOODS.items()
        ),
        Flood("zero window", frames.zero_window, is_timed=True, is_sampled=True, tls=True),
        Flood("TCP unread", frames.unread_answers, is_timed=True, is_sampled=True, tls=True),
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
