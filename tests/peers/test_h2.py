"""The `h2` library as a client, over sockets: many streams, small windows, cancels, PINGs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import h2.config
import h2.connection
import h2.events as ev
import h2.settings

from tests.fakes.grpc_server import path
from tests.peers.balancer import Balancer
from tests.wire.frames import message, request_fields

SMALL_WINDOW = 1000


class H2Client:
    """One connection; blocks."""

    def __init__(self, plain: socket.socket) -> None:
        self.socket = plain
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.connection = h2.connection.H2Connection(config)
        self.bodies: dict[int, bytes] = {}
        self.statuses: dict[int, bytes] = {}
        self.pings = 0

    def send(self) -> None:
        self.socket.sendall(self.connection.data_to_send())

    def call(self, method: str, payload: bytes) -> int:
        """Begin a unary call; returns its stream."""
        stream = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream, request_fields(path=path(method).encode()))
        self.connection.send_data(stream, message(payload), end_stream=True)
        self.bodies[stream] = b""
        return stream

    def read(self) -> list[ev.Event]:
        """What the next read brings; gives credit for it at once."""
        data = self.socket.recv(65536)
        assert data, "closed"
        events = self.connection.receive_data(data)
        for event in events:
            assert not isinstance(event, ev.ConnectionTerminated | ev.StreamReset), event
            match event:
                case ev.DataReceived():
                    self.bodies[event.stream_id] += event.data
                    self.connection.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                case ev.TrailersReceived() | ev.ResponseReceived():
                    status = dict(event.headers).get(b"grpc-status")
                    if status is not None:
                        self.statuses[event.stream_id] = status
                case ev.PingAckReceived():
                    self.pings += 1
        self.send()
        return events

    def until_over(self, *streams: int) -> None:
        """Wait for the end of calls, which must be good."""
        while not set(streams) <= set(self.statuses):
            self.read()
        assert {self.statuses[stream] for stream in streams} == {b"0"}


@contextmanager
def _connected(balancer: Balancer, *, is_tls: bool, window: int = 65_535) -> Iterator[H2Client]:
    listener = "grpcs" if is_tls else "grpc"
    with socket.create_connection(("127.0.0.1", balancer.port(listener)), 10) as plain:
        wire = plain
        if is_tls:
            context = balancer.world.client_context("h2")
            wire = context.wrap_socket(plain, server_hostname="localhost")
        with wire:
            client = H2Client(wire)
            client.connection.local_settings = h2.settings.Settings(
                client=True,
                initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window},
            )
            client.connection.initiate_connection()
            client.send()
            yield client


def test_a_thousand_calls_a_hundred_at_a_time(balancer: Balancer, is_tls: bool) -> None:
    with (
        balancer.expecting(connections=1),
        _connected(balancer, is_tls=is_tls) as client,
    ):
        for _ in range(10):
            streams = [client.call("ModelInfer", b"hello") for _ in range(100)]
            client.send()
            client.until_over(*streams)
            assert {client.bodies[stream] for stream in streams} == {message(b"hello")}


def test_two_megabytes_through_windows_of_a_thousand_bytes(
    balancer: Balancer, is_tls: bool
) -> None:
    """h2 credits each stream as it reads: two thousand WINDOW_UPDATEs and more."""
    with (
        balancer.expecting(connections=1),
        _connected(balancer, is_tls=is_tls, window=SMALL_WINDOW) as client,
    ):
        streams = [client.call("Blob", b"500000") for _ in range(4)]
        client.send()
        client.until_over(*streams)
        assert {len(client.bodies[stream]) for stream in streams} == {500_005}


def test_a_ping_after_each_of_three_hundred_answers(balancer: Balancer, is_tls: bool) -> None:
    with (
        balancer.expecting(connections=1),
        _connected(balancer, is_tls=is_tls) as client,
    ):
        for number in range(1, 301):
            stream = client.call("ModelInfer", b"x")
            client.connection.ping(b"%08d" % number)
            client.send()
            client.until_over(stream)
            while client.pings < number:
                client.read()
