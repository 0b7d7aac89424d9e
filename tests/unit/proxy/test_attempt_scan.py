"""What is known of attempts from one scan to the next."""

from __future__ import annotations

import gc

from lb.domain.backend import Address, Backend, BackendSpec, Port
from lb.domain.outcome import Outcome
from lb.proxy.attempt_scan import AttemptScan
from lb.proxy.exchange import Attempt, Exchange
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import data, headers, named, request_fields


class Sending:
    """A call whose client may still be sending it, and its attempt."""

    def __init__(self, began_at: float, *, sent: bool = True) -> None:
        relay = PaperRelay()
        relay.client().sends(headers(1, request_fields()) + data(1, named(b"m"), end=sent))
        (self.exchange,) = relay.relay.under_way()
        port = Port(Address("127.0.0.1", 1))
        self.exchange.attempt = Attempt(
            self.exchange, Backend(BackendSpec(name="b")), port, began_at
        )


class Noting:
    """A check that notes since when answers are awaited."""

    def __init__(self, *, is_done: bool = False) -> None:
        self.is_done = is_done
        self.seen: list[float] = []

    def interval_s(self, _now: float) -> float:
        return 1.0

    def begin(self, _now: float) -> None:
        pass

    def check(self, exchange: Exchange, since: float, _now: float) -> bool:
        self.seen.append(since)
        return self.is_done


def tried() -> int:
    """Attempts of `Sending` that somebody knows."""
    gc.collect()
    return sum(type(each) is Attempt for each in gc.get_objects())


def scan(attempts: AttemptScan, now: float) -> None:
    for exchange in attempts.begin(now):
        attempts.check(exchange, now)
    attempts.end()


async def test_an_attempt_that_is_over_is_not_checked() -> None:
    class Ending(Noting):
        def check(self, exchange: Exchange, since: float, now: float) -> bool:
            assert exchange.attempt is not None
            exchange.attempt.outcome = Outcome.LATE
            return super().check(exchange, since, now)

    first, second, one, none = Ending(), Noting(), Sending(5.0), Sending(5.0)
    none.exchange.attempt = None
    attempts = AttemptScan(lambda: [one.exchange, none.exchange], [first, second])
    scan(attempts, 6.0)
    scan(attempts, 7.0)
    assert (len(first.seen), len(second.seen)) == (1, 0)


async def test_nothing_is_kept_of_what_is_over() -> None:
    exchanges = [Sending(5.0).exchange, Sending(5.0, sent=False).exchange]
    attempts = AttemptScan(lambda: exchanges, [Noting(is_done=True)])
    scan(attempts, 6.0)
    assert tried() == 2
    while exchanges:
        exchanges.pop().attempt = None
    scan(attempts, 7.0)
    assert tried() == 0
