"""Bytes of answers on the ledger."""

from __future__ import annotations

from lb.proxy.fan_out.account import AnswerAccount
from lb.wire.ledger import Ledger


def test_answers_are_on_the_ledger_until_the_account_is_closed() -> None:
    ledger = Ledger(100)
    account = AnswerAccount(ledger)
    assert account.keep(30)
    assert account.keep(40)
    assert ledger.held == 70
    account.close()
    assert ledger.held == 0
    assert len(ledger) == 0


def test_the_largest_gives_way_and_takes_nothing_more() -> None:
    ledger = Ledger(100)
    large, small = AnswerAccount(ledger), AnswerAccount(ledger)
    assert large.keep(70)
    assert small.keep(50)
    assert not large.is_open
    assert small.is_open
    assert not large.keep(1)
    assert ledger.held == 50
    assert not small.keep(60)
    assert ledger.held == 0
