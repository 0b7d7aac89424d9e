"""One direction of one stream: what waits, what is kept, what is credited."""

from __future__ import annotations

import pytest

from lb.wire.http2.flow import UNCOUNTED, Pipe
from lb.wire.memory_budget import MemoryBudget

WINDOW = 1000


class Owner:
    """Ends its only pipe when told to."""

    def __init__(self) -> None:
        self.evicted = 0
        self.pipe: Pipe[None] | None = None

    def evict(self) -> None:
        self.evicted += 1
        assert self.pipe is not None
        self.pipe.clear()


def make_pipe(
    memory_budget: MemoryBudget | None = None, window: int = WINDOW, limit: int = 0
) -> Pipe[None]:
    owner = Owner()
    if memory_budget is None:
        memory_budget = MemoryBudget(2**20)
    pipe: Pipe[None] = Pipe(owner, memory_budget, window, limit or window)
    owner.pipe = pipe
    return pipe


def drain(pipe: Pipe[None], limit: int) -> list[bytes]:
    """All that waits, in pieces of at most `limit` bytes."""
    pieces = []
    while pipe.queue:
        pieces.append(bytes(pipe.pull(limit)))
    return pieces


def test_waiting_bytes_come_out_in_order_and_in_the_asked_sizes() -> None:
    pipe = make_pipe()
    assert pipe.push(b"abcdef")
    assert pipe.push(memoryview(b"gh"))
    assert pipe.held == pipe.memory_budget.held == 8
    assert drain(pipe, 4) == [b"abcd", b"efgh"]
    assert pipe.held == pipe.memory_budget.held == 0


def test_short_pieces_wait_and_are_retained_as_few() -> None:
    pipe = make_pipe()
    pipe.retained = []
    pieces = [bytes([number]) * 100 for number in range(100)]
    for piece in pieces:
        assert pipe.push(piece)
        pipe.retain(piece, 10_000)
    few = drain(pipe, 10_000)
    assert b"".join(few) == b"".join(pieces)
    assert len(few) == 10
    assert pipe.rewind()
    assert drain(pipe, 10_000) == few


def test_what_is_put_back_comes_first() -> None:
    pipe = make_pipe()
    assert pipe.put_back(())
    assert pipe.put_back((b"a" * 1000, b"b" * 1000))
    assert pipe.push(b"c" * 1000)
    first = pipe.pull(1500)
    assert pipe.put_back((first[500:],))
    assert b"".join(drain(pipe, 10_000)) == b"a" * 500 + b"b" * 1000 + b"c" * 1000
    assert pipe.held == pipe.memory_budget.held == 0


def test_credit_comes_in_halves_of_the_window() -> None:
    pipe = make_pipe()
    pipe.window -= 999
    assert pipe.went_out(499) == 0
    assert pipe.went_out(1) == 500
    assert pipe.window == 501
    assert pipe.went_out(499) == 0


def test_no_credit_for_a_sender_that_has_ended() -> None:
    pipe = make_pipe()
    pipe.ended = True
    assert pipe.went_out(WINDOW) == 0


def test_a_small_window_comes_to_size_in_one_step() -> None:
    pipe: Pipe[object] = Pipe(None, MemoryBudget(10**9), 65_535, 4 * 2**20)
    sizes = []
    while pipe.window_size < 4 * 2**20:
        half = (pipe.window_size + 1) // 2
        pipe.window -= half
        assert pipe.went_out(half) > half
        sizes.append(pipe.window_size)
        assert pipe.window == pipe.window_size
    assert sizes == [2**20, 2 * 2**20, 4 * 2**20]


def test_window_doubles_up_to_its_limit_while_everything_goes_out() -> None:
    pipe = make_pipe(limit=3 * WINDOW)
    pipe.window -= WINDOW
    assert pipe.went_out(WINDOW) == 2 * WINDOW
    assert pipe.went_out(WINDOW) == 2 * WINDOW
    assert pipe.window_size == 3 * WINDOW
    assert pipe.went_out(2 * WINDOW) == 2 * WINDOW


def test_window_stays_while_bytes_wait() -> None:
    pipe = make_pipe(limit=3 * WINDOW)
    pipe.push(b"x")
    assert pipe.went_out(WINDOW) == WINDOW
    assert pipe.window_size == WINDOW


def test_nothing_is_credited_while_memory_is_short_and_bytes_wait() -> None:
    memory_budget = MemoryBudget(800)
    pipe = make_pipe(memory_budget)
    pipe.push(bytes(700))
    assert pipe.went_out(WINDOW) == 0
    pipe.pull(700)
    assert pipe.went_out(0) == WINDOW


def test_retained_copies_are_counted_above_the_size_of_a_call() -> None:
    pipe = make_pipe()
    pipe.retained = []
    pipe.retain(memoryview(bytes(UNCOUNTED)), 10_000)
    assert pipe.held == 0
    pipe.retain(b"x", 10_000)
    assert pipe.held == UNCOUNTED + 1
    assert pipe.retained == [bytes(UNCOUNTED), b"x"]
    pipe.drop_retained()
    assert pipe.retained is None
    assert pipe.held == pipe.memory_budget.held == 0


def test_views_are_retained_unless_they_keep_much_else() -> None:
    view, other = memoryview(bytes(100_000)), memoryview(bytes(100_000))
    pipe = make_pipe()
    pipe.retained = []
    pipe.retain(view[:60_000], 1 << 20)
    pipe.retain(other[:10_000], 1 << 20)
    pipe.retain_run([view[:30_000], view[30_000:60_000]], 60_000, 1 << 20)
    pipe.retain_run([other[:10_000], other[10_000:20_000]], 20_000, 1 << 20)
    kinds = [type(piece) for piece in pipe.retained or ()]
    assert kinds == [memoryview, bytes, memoryview, memoryview, bytes, bytes]
    assert pipe.held == pipe.retained_size == 150_000


def test_a_small_view_is_retained_where_its_read_is_anyway() -> None:
    view = memoryview(bytes(100_000))
    pipe = make_pipe()
    pipe.retained = []
    pipe.retain(view[:60_000], 1 << 20)
    pipe.retain(view[60_000:70_000], 1 << 20)
    assert [type(piece) for piece in pipe.retained or ()] == [memoryview, memoryview]


@pytest.mark.parametrize("run", [False, True])
def test_nothing_is_retained_where_much_is_held(run: bool) -> None:
    pipe = make_pipe(MemoryBudget(20_000))
    pipe.retained = []
    pipe.retain(bytes(9_000), 1 << 20)
    if run:
        pipe.retain_run([bytes(1_500)], 1_500, 1 << 20)
    else:
        pipe.retain(bytes(1_500), 1 << 20)
    assert pipe.retained is None
    assert pipe.held == pipe.memory_budget.held == 0
    assert pipe.memory_budget.unkept == 1


def test_what_passes_the_limit_is_not_retained_at_all() -> None:
    pipe = make_pipe()
    pipe.retained = []
    pipe.retain(bytes(5000), 6000)
    pipe.retain(bytes(1001), 6000)
    assert pipe.retained is None
    assert pipe.held == 0


@pytest.mark.parametrize("sent", [0, 1, 3, 7, 10])
def test_rewound_bytes_go_out_again_and_are_not_credited_twice(sent: int) -> None:
    pipe = make_pipe(window=4)
    pipe.retained = []
    credited = 0
    for piece in (b"abcd", b"efg", b"hij"):
        pipe.retain(piece, 100)
        pipe.push(piece)
    for _ in range(sent):
        pipe.pull(1)
        credited += pipe.went_out(1)
    assert pipe.rewind()
    assert drain(pipe, 100) == [b"abcdefghij"]
    for _ in range(10):
        credited += pipe.went_out(1)
    assert credited == 10


def test_rewinding_twice_credits_once() -> None:
    pipe = make_pipe(window=4)
    pipe.retained = []
    pipe.retain(b"abcdef", 100)
    pipe.push(b"abcdef")
    credited = 0
    for sent in (4, 2, 6):
        for _ in range(sent):
            pipe.pull(1)
            credited += pipe.went_out(1)
        if sent != 6:
            assert pipe.rewind()
    assert credited == 6


def test_clearing_leaves_nothing_on_the_memory_budget() -> None:
    pipe = make_pipe()
    pipe.retained = []
    pipe.retain(bytes(5000), 10_000)
    pipe.push(bytes(5000))
    assert pipe.held == 10_000
    pipe.clear()
    assert (pipe.held, pipe.memory_budget.held, len(pipe.memory_budget)) == (0, 0, 0)
    assert not pipe.queue
    assert pipe.retained is None


@pytest.mark.parametrize("act", ["push", "collect"])
def test_the_owner_gives_way_where_the_memory_budget_is_full(act: str) -> None:
    pipe = make_pipe(MemoryBudget(4999))
    pipe.retained = []
    kept = pipe.push(bytes(5000)) if act == "push" else pipe.collect(bytes(5000))
    assert not kept
    assert pipe.owner.evicted == 1
    assert pipe.memory_budget.held == 0
