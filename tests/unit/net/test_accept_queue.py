"""Whose connection is next, and how many a client may have."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from lb.domain.client import ClientKey, key_of_client
from lb.net import accept_queue
from lb.net.accept_queue import AcceptQueue

FLOOD, GOOD, OTHER = (key_of_client(ip_address(f"192.0.2.{last}")) for last in (1, 2, 3))


def put(queue: AcceptQueue, client: ClientKey) -> socket.socket:
    connection = socket.socket()
    queue.put(client, connection)
    return connection


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue = AcceptQueue()
    flood = [put(queue, FLOOD) for _ in range(4)]
    good = [put(queue, GOOD) for _ in range(2)]
    other = put(queue, OTHER)
    expected = [flood[0], good[0], other, flood[1], good[1], flood[2], flood[3]]
    assert [queue.take() for _ in range(len(queue))] == expected
    for each in expected:
        each.close()


def test_a_client_has_room_for_no_more_than_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accept_queue, "_ROOM", 8)
    queue = AcceptQueue()
    waiting = []
    for client, most in ((FLOOD, 4), (GOOD, 2), (OTHER, 1)):
        while queue.room(client) > 0:
            waiting.append(put(queue, client))
        assert queue.count(client) == most
    assert queue.room(None) == 1
    for each in waiting:
        each.close()
