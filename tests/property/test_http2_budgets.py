"""Honest clients never meet a budget, whatever they mix; every flood meets its own in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.wire.http2.budget import Allowance, Bucket, ConnectionTraffic
from tests.fakes.http2_connections import GREETING, PaperRelay, Side
from tests.wire import frames as f

STREAM_PATH = f.METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")


class PlainBucket:
    """Tokens as a number that grows."""

    def __init__(self, burst: int, per_s: float) -> None:
        self.burst = self.tokens = float(burst)
        self.per_s = per_s
        self.at = 0.0

    def take(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_s)
        self.at = now
        if self.tokens < 0.5:
            return False
        self.tokens -= 1
        return True


@given(
    st.integers(1, 20),
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 16.0]),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.125, 0.5, 1.0, 50.0]), max_size=200),
)
def test_a_bucket_fills_as_time_goes_by(burst: int, per_s: float, pauses: list[float]) -> None:
    bucket, plain, now = Bucket(Allowance(burst=burst, per_s=per_s)), PlainBucket(burst, per_s), 0.0
    for pause in pauses:
        now += pause
        assert bucket.take(now, ConnectionTraffic) == plain.take(now)


# Honest clients


class Honest:
    """A client that does what gRPC clients do, beside a backend that answers."""

    def __init__(self) -> None:
        self.relay = PaperRelay(options={"concurrent_streams": 1100})
        self.backend = self.relay.backend()
        self.client = self.relay.client(GREETING)
        self.next = 1
        """The next stream."""

    def begin(self, *fields: f.FieldPair, path: bytes = f.METHOD_PATH) -> tuple[int, int]:
        """Send a request that may go on; returns its stream here and behind."""
        stream, self.next = self.next, self.next + 2
        behind = self.backend.facts.next_stream
        head = f.request_fields(*fields, path=path)
        ends = path == f.METHOD_PATH
        self.client.sends(f.headers(stream, head), f.data(stream, f.named(), end=ends))
        return stream, behind

    def wait(self, seconds: float) -> None:
        self.relay.loop.advance(seconds)
        self.relay.flush()

    def unary(self, pings: bool) -> None:
        """A call; grpc-go asks for the bandwidth with a PING when payload has come."""
        _, behind = self.begin()
        self.wait(0.02)
        self.backend.sends(f.answer(behind))
        if pings:
            self.client.sends(f.window_update(0, 5), f.ping())

    def cancelled(self, after_s: float) -> None:
        """As Go's: RST_STREAM and a PING."""
        stream, _ = self.begin()
        self.wait(after_s)
        self.client.sends(f.rst(stream), f.ping())

    def mix(self, order: list[bool], after_s: float) -> None:
        """Ten calls at 50 per second, of which three are cancelled."""
        for is_cancelled in order:
            if is_cancelled:
                self.cancelled(after_s)
            else:
                self.unary(pings=True)
            self.wait(0.02)

    def storm(self, timeout_ms: int, lateness: float) -> None:
        """1,000 calls at once, which nobody answers before the client's deadline."""
        field = (b"grpc-timeout", b"%dm" % timeout_ms)
        streams = [self.begin(field)[0] for _ in range(1000)]
        self.wait(timeout_ms / 1000 * lateness)
        for stream in streams:
            self.client.sends(f.rst(stream))

    def chat(self, messages: int, size: int) -> None:
        """A stream with messages both ways at full speed, each of them credited on its own."""
        stream, behind = self.begin(path=STREAM_PATH)
        self.backend.sends(f.headers(behind, f.RESPONSE_FIELDS))
        one, whole = f.message(bytes(size)), size + 5
        for _ in range(messages):
            self.client.sends(f.data(stream, one))
            self.backend.sends(f.data(behind, one))
            self.client.sends(f.window_update(stream, whole) + f.window_update(0, whole) + f.ping())
            self.backend.sends(f.window_update(behind, whole) + f.window_update(0, whole))
        self.client.sends(f.data(stream, end=True))
        self.backend.sends(f.headers(behind, f.OK_TRAILERS, end=True))

    def download(self, frames: int, window: int) -> None:
        """A large answer through a small window, credited half by half."""
        stream, behind = self.begin()
        self.client.sends(f.settings({f.INITIAL_WINDOW_SIZE: window}))
        self.backend.sends(f.headers(behind, f.RESPONSE_FIELDS))
        half = max(window // 2, 1)
        for _ in range(frames):
            self.backend.sends(f.data(behind, bytes(half)))
            self.client.sends(f.window_update(stream, half), f.window_update(0, half))
        self.client.sends(f.settings({f.INITIAL_WINDOW_SIZE: 65_535}))
        self.backend.sends(f.headers(behind, f.OK_TRAILERS, end=True))

    def crossing(self) -> None:
        """What was on its way when a stream ended."""
        stream, behind = self.begin()
        self.backend.sends(f.answer(behind))
        self.client.sends(f.rst(stream), f.window_update(stream, 9))

    def early_answer(self) -> None:
        """The answer is complete before the upload, most of which is on its way."""
        stream, behind = self.begin(path=STREAM_PATH)
        self.backend.sends(f.headers(behind, [*f.RESPONSE_FIELDS, *f.OK_TRAILERS], end=True))
        self.client.sends(f.data(stream, bytes(900)) * 20 + f.data(stream, end=True))

    def check(self) -> None:
        frames = self.client.gets()
        self.backend.gets()
        assert f.GOAWAY not in {frame.kind for frame in frames}
        assert not self.client.transport.is_closing()
        assert not self.backend.transport.is_closing()


HABITS: st.SearchStrategy[Callable[[Honest], None]] = st.one_of(
    st.builds(
        lambda order, after: lambda client: client.mix(order, after),
        st.permutations([True] * 3 + [False] * 7),
        st.floats(0.0, 0.2),
    ),
    st.builds(
        lambda timeout, late: lambda client: client.storm(timeout, late),
        st.integers(120, 3000),
        st.floats(0.92, 1.2),
    ),
    st.builds(
        lambda count, size: lambda client: client.chat(count, size),
        st.integers(1, 300),
        st.sampled_from([0, 20, 1000]),
    ),
    st.builds(
        lambda count, window: lambda client: client.download(count, window),
        st.integers(1, 300),
        st.sampled_from([100, 1023, 16_383]),
    ),
    st.just(Honest.crossing),
    st.just(Honest.early_answer),
)


@given(st.lists(HABITS, min_size=1, max_size=5), st.integers(1, 12))
@example([lambda client: client.chat(250, 0)], 12)
@settings(max_examples=12, deadline=None)
async def test_honest_clients_meet_no_budget(
    habits: list[Callable[[Honest], None]], times: int
) -> None:
    client = Honest()
    for _ in range(times):
        for habit in habits:
            habit(client)
            client.check()


async def test_a_minute_of_calls_a_third_of_which_are_cancelled_meets_no_budget() -> None:
    """50 calls per second, 30 % cancelled at 0 to 200 ms, and 20 pairs of RST and PING per second
    beside."""
    client = Honest()
    for second in range(60):
        for tenth in range(5):
            client.mix([True, False, False] * 3 + [False], 0.05 * ((second + tenth) % 5))
            for _ in range(4):
                client.cancelled(0.0)
        client.check()


async def test_a_gigabyte_through_a_window_of_a_kilobyte_meets_no_budget() -> None:
    """A part of it: each frame allows for more than it costs."""
    client = Honest()
    for _ in range(10):
        client.download(300, 1023)
        client.check()


# Floods


def rapid(stream: int) -> bytes:
    return f.headers(stream, f.request_fields()) + f.rst(stream)


def made(*more: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A whole request, and what makes us reset it."""
    return lambda stream: f.call(stream) + b"".join(one(stream) for one in more)


def priority(payload: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda stream: f.frame(f.PRIORITY, 0, stream, payload(stream))


FLOODS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "rapid reset": (rapid, 200),
    "made you reset: WINDOW_UPDATE 0": (made(lambda s: f.window_update(s, 0)), 100),
    "made you reset: overflow": (made(lambda s: f.window_update(s, 2**31 - 1)), 100),
    "made you reset: short PRIORITY": (made(priority(lambda _: bytes(4))), 100),
    "made you reset: own PRIORITY": (made(priority(lambda s: s.to_bytes(4, "big") + b"\0")), 100),
    "made you reset: DATA": (made(lambda s: f.data(s, b"late")), 100),
    "made you reset: HEADERS": (made(lambda s: f.headers(s, f.request_fields())), 100),
    "malformed heads": (lambda s: f.headers(s, [(b"a", b"b")], end=True), 100),
    "wrong lengths": (lambda s: f.call(s, None, (b"content-length", b"1")), 100),
    "PING": (lambda _: f.ping(), 200),
    "PING acknowledgements of nothing": (lambda _: f.SETTINGS_ACK, 100),
    "SETTINGS": (lambda _: f.settings({f.INITIAL_WINDOW_SIZE: 65_535}), 200),
    "PRIORITY": (priority(lambda _: bytes(5)), 100),
    "WINDOW_UPDATE": (lambda _: f.window_update(0, 1), 200),
    "unknown": (lambda s: f.frame(0x60 + s % 16, s % 256, s, b"?"), 100),
    "GOAWAY": (lambda _: f.goaway(), 101),
    "empty heads": (
        lambda s: f.headers(s, b"", done=False) + f.continuation(s, f.literals(f.request_fields())),
        100,
    ),
}


def until_cut(client: Side, units: Iterator[bytes], at_once: int) -> int:
    """Send units until the connection ends; returns how many were sent, the last read whole."""
    count = 0
    while not client.transport.eof and count < 5000:
        client.sends(b"".join(next(units) for _ in range(at_once)))
        count += at_once
    return count


@pytest.mark.parametrize("name", FLOODS)
@given(at_once=st.integers(1, 300), warm_up=st.integers(0, 3))
@settings(max_examples=5, deadline=None)
async def test_floods_are_cut_within_their_budget(name: str, at_once: int, warm_up: int) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    unit, budget = FLOODS[name]
    for stream in range(1, 2 * warm_up, 2):
        client.sends(f.call(stream))
        backend.sends(f.answer(stream))
    client.gets()
    first = 2 * warm_up + 1
    units = (unit(first + 2 * number) for number in range(10_000))
    sent = until_cut(client, units, at_once)
    worth = warm_up * {"PRIORITY": 10, "WINDOW_UPDATE": 65}.get(name, 3)  # what calls earned
    assert sent <= budget + worth + at_once
    last = client.gets()[-1]
    assert (last.kind, last.code) == (f.GOAWAY, f.ENHANCE_YOUR_CALM)
    started = sum(frame.kind == f.HEADERS for frame in backend.gets())
    assert started <= 2 * (budget + worth) + 1
    for _ in range(5):
        await asyncio.sleep(0)  # calls end in steps where the flood has taken an iteration's budget
    assert relay.is_clean()


@given(st.integers(1, 300), st.sampled_from([None, 0, 255]))
@settings(max_examples=10, deadline=None)
async def test_empty_data_is_cut(at_once: int, pad: int | None) -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(f.headers(1, f.request_fields(path=STREAM_PATH)))
    units = (f.data(1, pad=pad) for _ in range(10_000))
    assert until_cut(client, units, at_once) <= 100 + at_once
    assert relay.is_clean()


async def test_tiny_data_is_cut() -> None:
    relay = PaperRelay()
    relay.backend()
    client = relay.client()
    client.sends(f.headers(1, f.request_fields(path=STREAM_PATH)))
    assert until_cut(client, (f.data(1, b"x") for _ in range(10_000)), 1) <= 2100
    assert relay.is_clean()


async def test_a_flood_at_the_rate_of_the_budget_goes_on() -> None:
    """What is slower than the budgets is no flood: it costs as much as other work."""
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    for number in range(2000):
        client.sends(rapid(2 * number + 1))
        relay.loop.advance(0.05)
        backend.gets()
    assert f.GOAWAY not in {frame.kind for frame in client.gets()}
