"""What waits in one pipe waits in another."""

from __future__ import annotations

from typing import Any

from lb.proxy.http2.stream_pipes import Share, move_queue, move_retained
from lb.wire.http2.flow import Pipe
from lb.wire.ledger import Ledger


def pipe(ledger: Ledger) -> Pipe[Any]:
    return Pipe(object(), ledger, 100, 100)


def test_what_waits_and_what_is_kept_moves_with_its_bytes_on_the_ledger() -> None:
    ledger = Ledger(1 << 20)
    source, target = pipe(ledger), pipe(ledger)
    source.retained = []
    source.retain(bytes(5000), 10_000)
    source.push(b"abc")
    assert move_queue(source, target) == 3
    move_retained(source, target)
    assert (source.held, target.held, ledger.held) == (0, 5003, 5003)
    assert list(target.queue or ()) == [b"abc"]
    assert (source.retained, target.retained) == (None, [bytes(5000)])


def test_nothing_moves_where_nothing_waits() -> None:
    ledger = Ledger(1 << 20)
    source, target = pipe(ledger), pipe(ledger)
    assert move_queue(source, target) == 0
    assert target.queue is None


def test_the_window_of_a_share_is_that_of_the_whole() -> None:
    ledger = Ledger(1 << 20)
    whole = pipe(ledger)
    whole.window = 40
    share = Share(object(), whole)
    share.replayed = 10
    assert share.went_out(70) == 60, "what was credited before is not credited again"
    assert whole.window == 100
