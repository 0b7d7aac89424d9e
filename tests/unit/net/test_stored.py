"""Bytes that wait in pipes: cut, read and sent as often as need be, on real sockets."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lb.net.stored import MOST_PIPES, Store, StoredBytes
from lb.wire.grpc.message import MessageMeter, frame_message

DATA = random.Random(1).randbytes(200_000)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets of one connection. The second one does not wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        second, _ = server.accept()
    second.setblocking(False)
    with first, second:
        yield first, second


def _stored(store: Store, data: bytes = DATA) -> StoredBytes:
    """Bytes that a socket has received."""
    pipe = store.new_pipe()
    assert pipe is not None
    with connected() as (sender, receiver):
        for at in range(0, len(data), 50_000):
            sender.sendall(data[at : at + 50_000])
            end = min(at + 50_000, len(data))
            receiver.setblocking(True)
            while pipe.size < end:
                receiver.recv(1, socket.MSG_PEEK)
                pipe.fill(receiver.fileno(), end - pipe.size)
    return StoredBytes(store, pipe, 0, len(data))


def test_parts_can_be_read_in_any_order_and_again() -> None:
    stored = _stored(Store())
    for begin, end in ((0, 10), (150_000, 200_000), (3, 199_999), (0, 200_000), (7, 7)):
        assert stored.part(begin, end).read() == DATA[begin:end]
        assert len(stored.part(begin, end)) == end - begin
    assert stored.part(100, 5000).part(10, 20).read() == DATA[110:120]
    assert stored.part(199_990, 300_000).read() == DATA[199_990:]


def test_neighbours_become_one() -> None:
    store = Store()
    stored, other = _stored(store), _stored(store)
    joined = stored.part(5, 70_000).followed_by(stored.part(70_000, 90_000))
    assert joined is not None
    assert joined.read() == DATA[5:90_000]
    assert stored.part(5, 70).followed_by(stored.part(71, 90)) is None
    assert stored.part(0, 5).followed_by(other.part(5, 10)) is None


@pytest.mark.parametrize("step", [1, 4, 7, 5_000])
def test_the_length_of_messages_is_known_there_too(step: int) -> None:
    framed = frame_message(bytes(3)) + frame_message(b"") + frame_message(bytes(4_321))
    stored = _stored(Store(), framed)
    meter = MessageMeter()
    lengths = []
    for begin in range(0, len(stored), step):
        meter.feed(stored.part(begin, begin + step))
        lengths.append(meter.largest)
    in_memory = MessageMeter()
    for at, begin in enumerate(range(0, len(framed), step)):
        in_memory.feed(framed[begin : begin + step])
        assert lengths[at] == in_memory.largest
    assert meter.largest == 4_321


def test_a_socket_gets_what_it_takes_and_the_rest_later() -> None:
    stored = _stored(Store())
    with connected() as (reader, sink):
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        sent, read = 0, bytearray()
        while len(read) < len(DATA):
            sent += stored.part(sent, len(stored)).send(sink.fileno())
            read += reader.recv(1 << 20)
        assert bytes(read) == DATA
        assert stored.read() == DATA


def test_a_socket_that_fails_gets_no_more_and_what_is_stored_stays() -> None:
    stored = _stored(Store())
    with connected() as (reader, sink):
        sink.shutdown(socket.SHUT_WR)
        assert stored.send(sink.fileno()) == 0
        reader.close()
    assert stored.read() == DATA


def test_pipes_are_closed_with_the_last_of_their_bytes() -> None:
    store = Store()
    before = set(os.listdir("/proc/self/fd"))
    stored = _stored(store)
    part = stored.part(10, 20)
    del stored
    assert store.pipes == 1
    assert part.read() == DATA[10:20]
    del part
    store.close()
    assert store.pipes == 0
    assert set(os.listdir("/proc/self/fd")) <= before


def test_there_are_not_more_pipes_than_said() -> None:
    store = Store()
    pipes = [store.new_pipe() for _ in range(MOST_PIPES)]
    assert None not in pipes
    assert store.new_pipe() is None
    pipes.pop()
    assert store.new_pipe() is not None


def test_nothing_can_be_read_from_a_closed_store() -> None:
    store = Store()
    stored = _stored(store)
    store.close()
    with pytest.raises(OSError, match="closed"):
        stored.read()
