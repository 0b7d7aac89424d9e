"""The conversation with another process of the service, against one that is played."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lb.runtime.handover import Peer, sequence_news
from lb.runtime.logs import Logs
from lb.runtime.predecessor import line
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings

CONFIG: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}
ROW = ["m", 1, "a", 60.0]


class Pair:
    """Two conversations of one product: what one process tells goes on to the other one."""

    def __init__(self) -> None:
        settings = Settings.model_validate(CONFIG)
        self.logs = Logs(settings)
        self.product = LoadBalancer(settings, self.logs)
        self.news = sequence_news(self.product)
        self.stops: list[tuple[Peer, bool]] = []
        self.others: list[socket.socket] = []
        self.peers: list[Peer] = []

    async def connect(self) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)

        def stop(peer: Peer, force: bool) -> None:
            self.stops.append((peer, force))

        self.peers.append(Peer("other process", reader, writer, self.news, stop))
        self.others.append(theirs)


async def heard(other: socket.socket) -> Any:
    """The next message that the other process gets, if it is alone."""
    return json.loads(await asyncio.to_thread(other.recv, 1000))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.connect()
    await made.connect()
    yield made
    for peer in made.peers:
        peer.close()
    for other in made.others:
        other.close()
    await made.product.aclose()
    made.logs.close()


async def test_news_of_one_process_go_on_to_the_other_only(pair: Pair) -> None:
    for peer in pair.peers:
        peer.share_news()
    pair.others[0].sendall(line("sequences", [ROW]))
    assert await pair.peers[0].hear() == {"sequences": [ROW]}
    told = await asyncio.to_thread(pair.others[1].recv, 1000)
    assert json.loads(told) == {"sequences": [ROW]}
    pair.others[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.others[0].recv(1)


async def test_a_question_is_answered_when_all_others_have_answered(pair: Pair) -> None:
    asking, other = pair.others
    table = pair.product.relay.dispatcher.steps.table
    pair.peers[0].share_news()
    asking.sendall(line("sequences_asked", 7))
    await pair.peers[0].hear()
    assert await heard(asking) == {"sequences_answered": 7}

    pair.peers[1].share_news()
    asking.sendall(line("sequences_asked", 8))
    await pair.peers[0].hear()
    asked = await heard(other)
    other.sendall(line("sequences", [ROW]) + line("sequences_answered", asked["sequences_asked"]))
    await pair.peers[1].hear()
    await pair.peers[1].hear()
    told = (await asyncio.to_thread(asking.recv, 1000)).splitlines()
    assert [json.loads(each) for each in told] == [{"sequences": [ROW]}, {"sequences_answered": 8}]

    assert table.ask is not None
    question = table.ask()
    for at, peer in enumerate(pair.peers):
        assert not question.is_over
        number = (await heard(pair.others[at]))["sequences_asked"]
        pair.others[at].sendall(line("sequences_answered", number))
        await peer.hear()
    assert question.is_over


async def test_nobody_is_waited_for_who_has_gone(pair: Pair) -> None:
    table = pair.product.relay.dispatcher.steps.table
    pair.peers[0].share_news()
    assert table.ask is not None
    question = table.ask()
    pair.peers[0].close()
    assert question.is_over
    assert table.ask is None


async def test_a_stop_is_told_with_who_said_it(pair: Pair) -> None:
    pair.others[1].sendall(line("stop", False) + line("stop", True))
    await pair.peers[1].hear()
    await pair.peers[1].hear()
    assert pair.stops == [(pair.peers[1], False), (pair.peers[1], True)]


@pytest.mark.parametrize("last", [b"", b'{"stop": tr'])
async def test_an_end_without_a_word_is_no_stop(pair: Pair, last: bytes) -> None:
    pair.others[0].sendall(last)
    pair.others[0].close()
    assert await pair.peers[0].hear() is None
    assert pair.peers[0].is_gone
    assert pair.stops == []
    pair.peers[0].say("stop", False)  # to nobody


async def test_it_is_followed_until_it_ends(pair: Pair) -> None:
    pair.peers[0].share_news()
    pair.others[0].sendall(line("sequences", [ROW]))
    pair.others[0].close()
    await pair.peers[0].follow()
    assert pair.peers[0].is_gone
    assert len(pair.product.relay.dispatcher.steps.table) == 1
    assert pair.product.relay.dispatcher.steps.table.on_change is None


@pytest.mark.parametrize("text", [b"nonsense\n", b"[]\n"])
async def test_what_is_not_understood_ends_the_conversation(pair: Pair, text: bytes) -> None:
    pair.others[0].sendall(text)
    await pair.peers[0].follow()
    assert pair.peers[0].is_gone
