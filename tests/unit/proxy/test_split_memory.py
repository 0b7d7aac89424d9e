"""Memory of batches that are cut: who waits for room, and who gives way."""

from __future__ import annotations

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
        self.room = AnswerRoom(self.memory_budget)

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


def test_batches_begin_in_their_order_as_far_as_half_of_memory_goes() -> None:
    process = Process()
    process.learn()
    first, large, small = Batch(process).asks(), Batch(process).asks(35), Batch(process).asks()
    assert states(first, large, small) == ["begun", "waiting", "waiting"]
    assert process.memory_budget.held == ROWS * ROW
    first.leave()
    process.wait()
    assert states(large, small) == ["begun", "waiting"]
    large.leave()
    process.wait()
    assert small.state == "begun"
    small.leave()
    assert process.memory_budget.held == 0


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
