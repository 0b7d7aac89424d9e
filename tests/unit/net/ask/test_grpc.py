"""gRPC calls of our own, with h2 as the other side; `tests/unit/probes/test_grpc.py` has more."""

from __future__ import annotations

import gzip

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.client_call import Fields
from lb.net.ask.grpc import GrpcAnswer, GrpcClientCall
from lb.wire.http2 import frames

OPEN = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def make_client_call(
    message: bytes = b"", fields: Fields = (), limit: int = 1 << 20
) -> GrpcClientCall:
    return GrpcClientCall(b"/s/M", fields, message, authority=b"a:1", limit=limit)


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


class Server:
    """An independent HTTP/2 server."""

    def __init__(self, client_call: GrpcClientCall, window: int = 65_535) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.http2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.http2.initiate_connection()
        self.client_call = client_call
        self.fields: dict[bytes, bytes] = {}
        self.data = b""
        self.frames = 0
        self.ended = False
        self.read(client_call.opening())

    def read(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            if isinstance(event, RequestReceived):
                self.fields = dict(event.headers or [])
            elif isinstance(event, DataReceived):
                self.frames += 1
                self.data += event.data or b""
            elif isinstance(event, StreamEnded):
                self.ended = True

    def take_upload(self) -> int:
        """Read what the talk may send; how much that was."""
        before = len(self.data)
        while pieces := self.client_call.upload():
            self.read(b"".join(pieces))
        return len(self.data) - before

    def write(self) -> None:
        """Give the talk what there is to say, and take what it answers."""
        self.read(self.client_call.receive(self.http2.data_to_send()))

    def credit(self, size: int, *, stream: bool = True, connection: bool = True) -> None:
        if connection:
            self.http2.increment_flow_control_window(size)
        if stream:
            self.http2.increment_flow_control_window(size, 1)
        self.write()


def test_a_short_call_goes_out_at_once() -> None:
    server = Server(make_client_call(b"hello", ((b"x-key", b"v"),)))
    assert server.take_upload() == 10
    assert server.data == framed(b"hello")
    assert server.ended
    assert server.fields == {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/s/M",
        b":authority": b"a:1",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"x-key": b"v",
    }


def test_a_long_call_waits_for_both_windows() -> None:
    message = bytes(range(256)) * 1000
    server = Server(make_client_call(message))
    assert server.take_upload() == 65_535
    server.credit(30_000, stream=False)
    assert server.take_upload() == 0
    server.credit(20_000, connection=False)
    assert server.take_upload() == 20_000
    server.credit(300_000)
    server.take_upload()
    assert server.data == framed(message)
    assert server.ended


def test_settings_of_the_server_change_the_window_and_the_frames() -> None:
    server = Server(make_client_call(bytes(400_000)))
    server.take_upload()
    frames = server.frames
    server.http2.update_settings(
        {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20, SettingCodes.MAX_FRAME_SIZE: 1 << 20}
    )
    server.write()
    server.credit(1 << 20, stream=False)
    server.take_upload()
    assert len(server.data) == 400_005
    assert server.ended
    assert server.frames == frames + 2  # pieces of 256 KiB


def test_a_window_may_shrink_below_zero() -> None:
    server = Server(make_client_call(bytes(100_000)))
    server.take_upload()
    server.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    server.write()
    server.credit(60_000)
    assert server.take_upload() == 0
    server.credit(100_000)
    server.take_upload()
    assert server.ended


def test_an_answer_of_any_size_up_to_the_limit_needs_no_credit() -> None:
    client_call = make_client_call()
    server = Server(client_call)
    server.take_upload()
    server.http2.send_headers(1, OPEN)
    message = bytes(1 << 20)
    data = framed(message)
    for at in range(0, len(data), 16_384):
        server.http2.send_data(1, data[at : at + 16_384])
    server.http2.send_headers(1, OK, end_stream=True)
    server.write()
    assert client_call.answer == GrpcAnswer(0, "", message)


def answered(data: bytes, limit: int = 1000) -> GrpcAnswer | None:
    client_call = make_client_call(limit=limit)
    server = Server(client_call)
    server.take_upload()
    server.http2.send_headers(1, OPEN)
    server.http2.send_data(1, data)
    server.http2.send_headers(1, OK, end_stream=True)
    server.write()
    return client_call.answer


def test_a_compressed_answer_is_opened() -> None:
    assert answered(framed(gzip.compress(b"hello"), flag=1)) == GrpcAnswer(0, "", b"hello")


def test_a_compressed_answer_that_nobody_asked_for_inflates_to_little() -> None:
    with pytest.raises(UpstreamError) as error:
        answered(framed(gzip.compress(bytes(2 << 20)), flag=1), limit=1 << 26)
    assert error.value.outcome is Outcome.PROTOCOL_ERROR


def test_an_error_has_its_text() -> None:
    client_call = make_client_call()
    server = Server(client_call)
    server.take_upload()
    fields = [*OPEN, ("grpc-status", "5"), ("grpc-message", "no %C3%A4 model")]
    server.http2.send_headers(1, fields, end_stream=True)
    server.write()
    assert client_call.answer == GrpcAnswer(5, "no ä model", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        framed(b"a")[:-1],
        framed(b"a") + framed(b"b"),
        framed(b"no gzip", flag=1),
        framed(gzip.compress(bytes(2000)), flag=1),
    ],
)
def test_an_answer_that_is_not_one_message_is_an_error(data: bytes) -> None:
    with pytest.raises(UpstreamError) as error:
        answered(data)
    assert error.value.outcome is Outcome.PROTOCOL_ERROR


def test_a_refused_stream_did_not_run() -> None:
    for code, outcome in ((7, Outcome.REFUSED), (2, Outcome.RESET)):
        server = Server(make_client_call())
        server.take_upload()
        server.http2.reset_stream(1, code)
        with pytest.raises(UpstreamError) as error:
            server.write()
        assert error.value.outcome is outcome


def test_a_status_that_is_no_number_is_an_error() -> None:
    server = Server(make_client_call())
    server.take_upload()
    server.http2.send_headers(1, [*OPEN, ("grpc-status", "x")], end_stream=True)
    with pytest.raises(UpstreamError, match="no number"):
        server.write()


def test_a_server_that_pings_without_end_is_left() -> None:
    client_call = make_client_call()
    client_call.receive(frames.settings({}))
    many = frames.ping(bytes(8), ack=False) * 10_000
    assert len(client_call.receive(many)) == len(many)
    with pytest.raises(UpstreamError, match="endless frames"):
        client_call.receive(many * 10)


@pytest.mark.parametrize(
    "frame", [frames.frame_header(0, frames.DATA, 0, 1), frames.frame_header(0, 0xFA, 0, 1)]
)
def test_a_server_that_sends_empty_frames_without_end_is_left(frame: bytes) -> None:
    client_call = make_client_call()
    client_call.receive(frames.settings({}))
    client_call.receive(frame * 10_000)
    with pytest.raises(UpstreamError, match="endless frames"):
        client_call.receive(frame * 100_000)


def test_a_second_head_of_an_answer_is_an_error() -> None:
    client_call = make_client_call()
    server = Server(client_call)
    server.http2.send_headers(1, OPEN)
    client_call.receive(server.http2.data_to_send())
    block = client_call._block
    with pytest.raises(UpstreamError, match="without a status"):
        client_call.receive(
            frames.frame_header(len(block), frames.HEADERS, frames.END_HEADERS, 1) + block
        )


def test_a_session_has_further_calls_until_the_server_leaves() -> None:
    first = make_client_call(b"one")
    server = Server(first)
    server.take_upload()
    answer_to_newest(server, b"1")
    assert first.answer == GrpcAnswer(0, "", b"1")
    assert first.is_reusable
    server.http2.ping(b"12345678")
    server.write()  # h2 raises where the answer is wrong
    second = GrpcClientCall(
        b"/s/M", (), b"two", authority=b"a:1", limit=1 << 20, session=first.session
    )
    server.client_call = second
    server.read(second.opening())
    server.take_upload()
    answer_to_newest(server, b"2")
    assert second.answer == GrpcAnswer(0, "", b"2")
    assert second.is_reusable
    server.http2.close_connection()
    server.write()
    assert not second.is_reusable


def answer_to_newest(server: Server, message: bytes) -> None:
    stream = server.client_call.session.stream
    server.http2.send_headers(stream, OPEN)
    server.http2.send_data(stream, framed(message))
    server.http2.send_headers(stream, OK, end_stream=True)
    server.write()


def test_a_session_with_frames_of_no_call_is_over() -> None:
    client_call = make_client_call()
    server = Server(client_call)
    server.take_upload()
    answer_to_newest(server, b"1")
    assert client_call.receive(frames.frame_header(1, frames.DATA, 0, 1) + b"x") == b""
    assert not client_call.is_reusable


def test_equal_heads_mean_other_fields_once_the_dynamic_table_has_changed() -> None:
    client_call = make_client_call()
    client_call.receive(frames.settings({}))
    for added in (b"first", b"second"):
        # ":status: 200", then "x-value" as a literal that enters the table at index 62, or from it.
        adding = b"\x88\x40\x07x-value" + bytes((len(added),)) + added
        for head in (adding, b"\x88\xbe", b"\x88\xbe"):
            client_call.opening()
            client_call.upload()
            stream = client_call.session.stream
            client_call.receive(
                frames.header_frames(stream, head, end_stream=False, frame_size=1 << 14)
                + frames.frame_header(5, frames.DATA, 0, stream)
                + framed(b"")
                + frames.header_frames(
                    stream, b"\0\x0bgrpc-status\x010", end_stream=True, frame_size=1 << 14
                )
            )
            assert client_call.answer is not None
            assert client_call.answer.field(b"x-value") == added
            client_call = GrpcClientCall(
                b"/s/M", (), b"", authority=b"a:1", session=client_call.session
            )
