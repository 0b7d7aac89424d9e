"""Token buckets whose clock is an argument, and the figures of the two roles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lb.wire.http2.budget import (
    BACKEND_ALLOWANCES,
    Allowance,
    Allowances,
    Bucket,
    ConnectionTraffic,
    FloodGuard,
    Spending,
    client_allowances,
)

NOTHING = ConnectionTraffic()


def none() -> ConnectionTraffic:
    return NOTHING


def burst(bucket: Bucket, now: float, traffic: Callable[[], ConnectionTraffic] = none) -> int:
    """How often in a row a token is there."""
    count = 0
    while count < 100_000 and bucket.take(now, traffic):
        count += 1
    return count


def spent(allowances: Allowances, what: Spending, traffic: ConnectionTraffic = NOTHING) -> int:
    guard = FloodGuard(allowances)
    count = 0
    while count < 200_000 and guard.take(what, 0.0, lambda: traffic):
        count += 1
    return count


def test_a_new_bucket_is_full() -> None:
    assert burst(Bucket(Allowance(burst=7, per_s=2)), 100.0) == 7


def test_time_gives_back_up_to_the_burst() -> None:
    bucket = Bucket(Allowance(burst=10, per_s=2))
    assert burst(bucket, 0.0) == 10
    assert burst(bucket, 1.0) == 2
    assert burst(bucket, 4.0) == 6
    assert burst(bucket, 1000.0) == 10


def test_waiting_with_a_full_bucket_saves_nothing() -> None:
    bucket = Bucket(Allowance(burst=10, per_s=2))
    assert bucket.take(0.0, none)
    assert burst(bucket, 1000.0) == 10


def test_traffic_fills_the_bank_and_only_once() -> None:
    bucket = Bucket(Allowance(burst=10, per_s=1, answer=2))
    assert burst(bucket, 0.0, lambda: ConnectionTraffic(answers=4)) == 18
    assert burst(bucket, 0.0, lambda: ConnectionTraffic(answers=4)) == 0
    assert burst(bucket, 0.0, lambda: ConnectionTraffic(answers=5)) == 2


def test_the_bank_is_bounded() -> None:
    bucket = Bucket(Allowance(burst=10, per_s=1, stream=1, bank=30))
    assert burst(bucket, 0.0, lambda: ConnectionTraffic(streams=10_000)) == 40


def test_parts_of_tokens_add_up() -> None:
    bucket = Bucket(Allowance(burst=1, per_s=1, byte_in=1 / 256, byte_out=1 / 512, sent=0.25))
    assert (
        burst(bucket, 0.0, lambda: ConnectionTraffic(bytes_in=384, bytes_out=384, sent=3)) == 1 + 3
    )


def test_traffic_is_not_looked_at_while_there_are_tokens() -> None:
    def never() -> ConnectionTraffic:
        raise AssertionError

    bucket = Bucket(Allowance(burst=5, per_s=1, answer=1))
    assert all(bucket.take(0.0, never) for _ in range(5))


def test_what_has_no_allowance_is_free() -> None:
    assert spent({}, Spending.PING) == 200_000


@pytest.mark.parametrize(
    ("what", "most"),
    [
        (Spending.RESET, 200),
        (Spending.FAULT, 100),
        (Spending.REFUSAL, 100),
        (Spending.PING, 200),
        (Spending.SETTINGS, 200),
        (Spending.PRIORITY, 100),
        (Spending.CREDIT, 200),
        (Spending.EMPTY, 100),
        (Spending.CRUMB, 2000),
        (Spending.STRAY, 100),
        (Spending.OVERSIZED, 100),
    ],
)
def test_what_a_client_may_do_that_has_done_nothing_else(what: Spending, most: int) -> None:
    assert spent(client_allowances(1024), what) == most


def test_answers_allow_for_as_many_resets_as_streams_at_once() -> None:
    assert (
        spent(client_allowances(1024), Spending.RESET, ConnectionTraffic(answers=10**6))
        == 200 + 1024
    )
    assert (
        spent(client_allowances(10), Spending.RESET, ConnectionTraffic(answers=10**6)) == 200 + 200
    )


def test_payload_that_we_send_allows_for_its_credit() -> None:
    """1 GiB in frames of 1 KiB, each credited on the stream and the connection, and more."""
    frames = 2**20
    seen = ConnectionTraffic(streams=1, sent=frames, bytes_out=2**30)
    allowance = client_allowances(1024)[Spending.CREDIT]
    assert allowance.earned(seen) >= 20 * frames


@pytest.mark.parametrize("what", Spending)
def test_every_kind_says_what_it_is(what: Spending) -> None:
    assert what.detail.startswith("too many ")
    assert what in client_allowances(1)


def test_backends_may_do_more() -> None:
    clients = client_allowances(1024)
    for what, allowance in BACKEND_ALLOWANCES.items():
        assert allowance.burst > clients[what].burst
        assert allowance.per_s >= clients[what].per_s
