"""The tables of states: complete, and as RFC 9113 has them."""

from __future__ import annotations

import pytest

from lb.wire.http2 import frames as fr
from lb.wire.http2.frames import ErrorCode
from lb.wire.http2.states import (
    AS_CLIENT,
    AS_SERVER,
    COLUMNS,
    ExpectedFrame,
    FrameFate,
    Lately,
    StreamState,
    Verdict,
    breaks_turn,
    stream_table,
)

TABLES = pytest.mark.parametrize("rows", [AS_SERVER, AS_CLIENT], ids=["server", "client"])
PROTOCOL = Verdict(FrameFate.ENDS_CONNECTION, ErrorCode.PROTOCOL_ERROR)


@TABLES
def test_every_state_has_a_verdict_on_every_frame(rows: dict[StreamState, tuple[Verdict]]) -> None:
    assert list(rows) == list(StreamState)
    assert {len(row) for row in rows.values()} == {len(COLUMNS)}


@TABLES
def test_lookup_is_the_table(rows: dict[StreamState, tuple[Verdict, ...]]) -> None:
    table = stream_table(rows)  # type: ignore[arg-type]  # its length was tested
    for state in StreamState:
        for column, kind in enumerate(COLUMNS):
            assert table[state][kind] == rows[state][column]
        assert table[state][fr.PUSH_PROMISE] == PROTOCOL


@TABLES
def test_priority_is_ignored_in_every_state(rows: dict[StreamState, tuple[Verdict, ...]]) -> None:
    """RFC 9113 5.1, 5.3.2."""
    for row in rows.values():
        assert row[COLUMNS.index(fr.PRIORITY)] == Verdict(FrameFate.IGNORED)


@TABLES
def test_all_else_on_an_idle_stream_breaks_the_protocol(
    rows: dict[StreamState, tuple[Verdict, ...]],
) -> None:
    """RFC 9113 5.1; only a client's HEADERS open a stream."""
    idle = dict(zip(COLUMNS, rows[StreamState.IDLE], strict=True))
    assert {idle[kind] for kind in (fr.DATA, fr.RST_STREAM, fr.WINDOW_UPDATE)} == {PROTOCOL}
    opens = rows is AS_SERVER
    assert idle[fr.HEADERS] == (Verdict(FrameFate.ACCEPTED) if opens else PROTOCOL)


@TABLES
def test_nothing_for_a_stream_that_we_reset_is_an_error(
    rows: dict[StreamState, tuple[Verdict, ...]],
) -> None:
    assert set(rows[StreamState.RESET_BY_US]) == {Verdict(FrameFate.IGNORED)}


@pytest.mark.parametrize("state", [StreamState.HALF_CLOSED_REMOTE, StreamState.RESET_BY_PEER])
def test_payload_and_heads_after_the_clients_end_end_its_stream(state: StreamState) -> None:
    row = dict(zip(COLUMNS, AS_SERVER[state], strict=True))
    assert (
        row[fr.DATA] == row[fr.HEADERS] == Verdict(FrameFate.ENDS_STREAM, ErrorCode.STREAM_CLOSED)
    )


def test_a_stream_is_not_used_twice() -> None:
    heads = COLUMNS.index(fr.HEADERS)
    assert AS_SERVER[StreamState.CLOSED][heads] == (
        FrameFate.ENDS_CONNECTION,
        ErrorCode.STREAM_CLOSED,
    )
    assert AS_SERVER[StreamState.SKIPPED][heads] == PROTOCOL


@pytest.mark.parametrize("kind", range(12))
def test_turns(kind: int) -> None:
    """SETTINGS first; CONTINUATION only within a header block, and nothing else there."""
    assert bool(breaks_turn(ExpectedFrame.SETTINGS, kind, 0, same_stream=False)) == (
        kind != fr.SETTINGS
    )
    assert bool(breaks_turn(ExpectedFrame.ANY, kind, 0, same_stream=False)) == (
        kind == fr.CONTINUATION
    )
    assert bool(breaks_turn(ExpectedFrame.BLOCK, kind, 0, same_stream=True)) == (
        kind != fr.CONTINUATION
    )
    assert breaks_turn(ExpectedFrame.BLOCK, kind, 0, same_stream=False)
    assert breaks_turn(ExpectedFrame.SETTINGS, kind, fr.ACK, same_stream=False)


def test_what_was_lately_is_known_and_the_list_does_not_grow() -> None:
    lately = Lately(100)
    for number in range(10_000):
        lately.add(number)
        assert number in lately
        assert len(lately) <= 200
    assert all(number in lately for number in range(9900, 10_000))
    assert 0 not in lately


def test_states_have_words() -> None:
    assert StreamState.RESET_BY_PEER.words == "reset by peer"
