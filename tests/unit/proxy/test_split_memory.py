"""Memory of batches that are cut: who waits for room, and who gives way."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from lb.net.iteration import IterationBudget
from lb.proxy.split_memory import AnswerRoom, BatchMemory
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.clock import FakeLoop

CEILING = 8000
HALF = CEILING // 2
ROWS = 10
ROW = 100
"""Bytes of answer for a row, once that is known."""


class Process:
    """Loop, timers and memory that batches share."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.iteration = IterationBudget(self.loop)
        self.timers = self.loop.wheel()
        self.memory_budget = MemoryBudget(CEILING)
        self.room = AnswerRoom(self.memory_budget, self.loop.time)

    def learn(self) -> None:
        """Some batch has shown how long answers are."""
        self.room.answered(b"m", 1, ROW, self)

    def wait(self, seconds: float = 0.0) -> None:
        """Have time pass, and another iteration of the loop."""
        self.loop.advance(seconds)


class Batch:
    """A batch whose request is complete."""

    def __init__(self, process: Process, *, held: int = 0) -> None:
        self.process = process
        self.memory = BatchMemory(process.memory_budget, self)
        self.state = "new"
        assert not held or self.memory.take(held)

    def asks(self, rows: int = ROWS, *, must: bool = True) -> Batch:
        """It begins, or waits if it may."""
        room = self.process.room
        if room.begin(self.memory, b"m", rows, must=must):
            self.begin()
        elif must:
            self.state = "waiting"
            room.wait(self.memory, b"m", rows, self.begin, self.process)
        else:
            self.state = "whole"
        return self

    def begin(self) -> None:
        self.state = "begun"

    def evict(self) -> None:
        self.state = "evicted"
        self.leave()

    def leave(self) -> None:
        self.process.room.leave(self.memory, self.process)
        self.memory.release(self.memory.held)


class Reader:
    """A client that was sent the joined answer of a batch, and has not read it."""

    def __init__(self, process: Process, size: int) -> None:
        self.process = process
        self.held = 0
        self.is_gone = False
        self.get(size)

    def get(self, size: int) -> None:
        self.process.room.handed_over(self, self.process)
        assert self.process.memory_budget.take(self, size)

    def read(self, size: int) -> None:
        self.process.memory_budget.release(self, min(size, self.held))

    def evict(self) -> None:
        self.is_gone = True
        self.read(self.held)


class SlowClient(Batch):
    """It sends a batch over and over, and does not read the answers."""

    reader: Reader | None = None

    def begin(self) -> None:
        super().begin()
        self.process.loop.call_later(0.1, self.answered)

    def answered(self) -> None:
        self.leave()
        self.reader = Reader(self.process, HALF // 8)

    def go_on(self) -> None:
        """Send another one if the answer to the last one was lost."""
        if self.reader is not None and self.reader.is_gone:
            self.reader = None
            self.asks(HALF // 8 // ROW)


def states(*batches: Batch) -> list[str]:
    return [each.state for each in batches]


def test_the_first_batch_of_a_model_shows_how_long_answers_are() -> None:
    process = Process()
    first, second, third = (Batch(process).asks() for _ in range(3))
    assert states(first, second, third) == ["begun", "waiting", "waiting"]
    process.room.answered(b"m", 2, 2 * ROW, process)
    process.wait()
    assert states(first, second, third) == ["begun"] * 3
    assert process.memory_budget.held == 2 * ROWS * ROW, "that of the first one was not known"


def test_the_next_one_begins_if_the_first_ends_without_an_answer() -> None:
    process = Process()
    first, second, third = (Batch(process).asks() for _ in range(3))
    first.leave()
    process.wait()
    assert states(second, third) == ["begun", "waiting"]


def test_nobody_waits_long_for_the_first_answer_of_a_slow_model() -> None:
    process = Process()
    first, second, third = (Batch(process).asks() for _ in range(3))
    process.wait(0.2)
    assert states(first, second, third) == ["begun", "waiting", "waiting"]
    process.wait(0.2)
    assert states(first, second, third) == ["begun"] * 3


def test_a_batch_for_which_there_is_no_room_is_overtaken_until_it_is_overdue() -> None:
    process = Process()
    process.learn()
    first, large, small = Batch(process).asks(20), Batch(process).asks(35), Batch(process).asks()
    assert states(first, large, small) == ["begun", "waiting", "begun"]
    also_large = Batch(process).asks(30)
    process.wait(4.0)
    small.leave()
    process.wait()
    assert states(large, also_large) == ["waiting", "waiting"]
    assert Batch(process).asks(5).state == "begun"
    process.wait(2.0)
    late = Batch(process).asks(5)
    assert states(large, also_large, late) == ["waiting"] * 3
    first.leave()
    process.wait()
    assert states(large, also_large, late) == ["begun", "waiting", "waiting"]


def test_a_stall_of_the_process_does_not_count_as_waiting() -> None:
    process = Process()
    batches = [Batch(process).asks() for _ in range(3)]
    process.loop.stall(10.0)
    process.wait()
    assert states(*batches) == ["begun", "waiting", "waiting"]


def test_batches_that_overtook_none_begin_in_their_order() -> None:
    process = Process()
    process.learn()
    first = Batch(process).asks(40)
    later = [Batch(process).asks(15) for _ in range(4)]
    first.leave()
    process.wait()
    assert states(*later) == ["begun", "begun", "waiting", "waiting"]


def test_a_batch_that_one_backend_takes_stays_whole_instead() -> None:
    process = Process()
    process.learn()
    first, second = Batch(process).asks(25), Batch(process).asks(25, must=False)
    assert states(first, second) == ["begun", "whole"]
    first.leave()
    assert Batch(process).asks(25, must=False).state == "begun"
    assert Batch(process).asks(41, must=False).state == "whole", "it never fits"


def test_answers_that_never_fit_are_awaited_one_after_the_other() -> None:
    process = Process()
    process.learn()
    first, second = (Batch(process, held=100).asks(1000) for _ in range(2))
    assert states(first, second) == ["begun", "waiting"]
    reserved = process.memory_budget.held - 2 * 100
    assert reserved == HALF - 100, "as much as there is room for"
    first.leave()
    process.wait()
    assert second.state == "begun"


def test_what_waits_keeps_nobody_who_waits_from_beginning() -> None:
    process = Process()
    process.learn()
    first = Batch(process).asks(40)
    second, third = (Batch(process, held=1500).asks() for _ in range(2))
    first.leave()
    process.wait()
    assert states(second, third) == ["begun", "waiting"], "the third has as much once it begins"


def test_answers_are_drawn_from_what_was_reserved() -> None:
    process = Process()
    process.learn()
    batch = Batch(process).asks()
    reserved = ROWS * ROW
    assert batch.memory.take(reserved - 1)
    assert process.memory_budget.held == reserved
    assert batch.memory.take(10)
    assert process.memory_budget.held == reserved + 9
    batch.leave()
    assert process.memory_budget.held == 0


def test_the_first_in_line_waits_for_clients_that_read() -> None:
    process = Process()
    process.learn()
    client = Batch(process, held=3500)
    waiting = Batch(process).asks()
    assert waiting.state == "waiting"
    process.wait(1.0)
    assert waiting.state == "waiting"
    client.memory.release(1000)
    process.wait(0.1)
    assert waiting.state == "begun"


def test_clients_that_do_not_read_keep_nobody_waiting_for_ever() -> None:
    process = Process()
    process.learn()
    Batch(process, held=3500)
    first, second = Batch(process).asks(), Batch(process).asks()
    process.wait(4.0)
    assert states(first, second) == ["waiting", "waiting"]
    process.wait(2.0)
    assert states(first, second) == ["begun", "waiting"]


def test_all_that_waited_long_begin_though_clients_do_not_read() -> None:
    process = Process()
    process.learn()
    readers = []
    for _ in range(3):
        readers.append(Reader(process, 1200))
        process.wait(0.1)
    batches = [Batch(process).asks() for _ in range(3)]
    process.wait(4.0)
    assert states(*batches) == ["waiting"] * 3
    process.wait(1.5)
    assert states(*batches) == ["begun"] * 3
    assert process.memory_budget.held <= CEILING * 3 // 4
    assert [each.is_gone for each in readers] == [False, False, True]


def test_the_longest_answers_that_were_unread_for_long_give_way_first() -> None:
    process = Process()
    process.learn()
    waiting = Batch(process)
    short, long = Reader(process, 1500), Reader(process, 2500)
    waiting.asks(20)
    process.wait(4.5)
    late = Reader(process, 1200)
    process.wait(1.0)
    assert waiting.state == "begun"
    assert [each.is_gone for each in (short, long, late)] == [False, True, False]


def test_a_client_has_some_time_for_an_answer_before_it_gives_way() -> None:
    process = Process()
    process.learn()
    waiting = Batch(process)
    other = Batch(process, held=3500)
    waiting.asks(20)
    process.wait(4.5)
    reader = Reader(process, 1000)
    process.wait(0.8)
    assert (waiting.state, reader.is_gone) == ("waiting", False)
    process.wait(0.5)
    assert (waiting.state, reader.is_gone) == ("begun", True)
    other.leave()


def test_a_client_that_has_read_its_answer_is_not_slow_with_the_next_one() -> None:
    process = Process()
    process.learn()
    waiting = Batch(process)
    keen, slow = Reader(process, 2500), Reader(process, 1000)
    waiting.asks(20)
    process.wait(3.0)
    keen.read(2500)
    keen.get(3500)
    process.wait(2.5)
    assert waiting.state == "begun"
    assert [each.is_gone for each in (keen, slow)] == [False, True]


def test_clients_that_have_read_their_answers_are_forgotten() -> None:
    process = Process()
    readers: WeakSet[Reader] = WeakSet()
    for _ in range(1000):
        reader = Reader(process, 10)
        readers.add(reader)
        reader.read(10)
        process.wait(0.1)
    del reader
    assert len(readers) < 100


@pytest.mark.parametrize("count", [20, 40])
def test_slow_clients_delay_no_batch_for_longer_however_many_they_are(count: int) -> None:
    process = Process()
    process.learn()
    clients = [SlowClient(process) for _ in range(count)]
    for each in clients:
        each.asks(HALF // 8 // ROW)
    delays: list[float] = []
    for _ in range(8):
        since = process.loop.time()
        good = Batch(process).asks()
        while good.state != "begun":
            process.wait(0.1)
            for each in clients:
                each.go_on()
        delays.append(process.loop.time() - since)
        good.leave()
    # At first all are overdue at once, and each has a second to read.
    assert delays[0] < 5.3 + -(-count // 12)
    assert max(delays[1:]) < 6.2
    assert process.memory_budget.evictions, "clients that do not read"
    assert process.memory_budget.shortages == 0


def test_a_batch_that_ends_while_it_waits_is_forgotten() -> None:
    process = Process()
    process.learn()
    first, second, third = Batch(process).asks(40), Batch(process).asks(), Batch(process).asks()
    second.leave()
    first.leave()
    process.wait(1.0)
    assert states(second, third) == ["waiting", "begun"]
    third.leave()
    process.wait()
    assert not process.loop.pending, "nobody looks for room any more"


def test_what_is_learnt_of_a_model_is_forgotten_with_other_settings() -> None:
    process = Process()
    process.learn()
    process.room.forget()
    assert states(Batch(process).asks(), Batch(process).asks()) == ["begun", "waiting"]


def test_a_batch_is_one_holder_however_many_answers_it_holds() -> None:
    process = Process()
    others = Batch(process, held=1000)
    batch = Batch(process)
    for _ in range(8):
        assert batch.memory.take(800)
    assert not others.memory.take(700) or batch.state == "evicted"
    assert states(others, batch) == ["new", "evicted"]
