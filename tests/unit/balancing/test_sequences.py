"""Where sequences run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.balancing.rendezvous import CHOICES
from lb.balancing.sequences import (
    IDLE_FACTOR,
    REFUSED_LIFETIME_S,
    Affinity,
    OpenSequence,
    Pin,
    SequenceTable,
)
from lb.domain.backend import Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import Placement
from lb.domain.sequence import SequenceKey, SequenceStep
from tests.fakes.backends import make_backend, make_backends

IDLE_S = 1.0
LIFETIME_S = IDLE_S * IDLE_FACTOR
POLICY = make_policy("least_loaded", Random(1))


def placement(backends: Sequence[Backend]) -> Placement:
    return Placement(tuple(backends), POLICY.build(backends) if backends else None, POLICY)


def step(
    sequence_id: int | str, *, model: bytes = b"m", start: bool = False, end: bool = False
) -> SequenceStep:
    return SequenceStep(SequenceKey(model, sequence_id), start, end)


class Play:
    """A table whose steps are named shortly."""

    def __init__(
        self, *backends: Backend, limit: int = 1000, affinity: Affinity = Affinity.LEAST_LOADED
    ) -> None:
        self.table = SequenceTable(limit=limit, affinity=affinity)
        self.eligible: tuple[Backend, ...] = backends
        self.now = 100.0
        self.idle_s = IDLE_S

    def begin(
        self, step: SequenceStep, tried: tuple[Backend, ...] = ()
    ) -> tuple[Backend | None, Pin | None]:
        return self.table.place(step, placement(self.eligible), self.idle_s, self.now, tried)

    def run(self, step: SequenceStep) -> Backend | None:
        """A step from its beginning to its end."""
        backend, pin = self.begin(step)
        if pin is not None:
            self.table.ended(step, pin, pin.starts, self.now)
        return backend

    def start(self, sequence_id: int | str, model: bytes = b"m") -> Backend:
        backend = self.run(step(sequence_id, model=model, start=True))
        assert backend is not None
        return backend

    def open(self) -> dict[str, int]:
        return {backend: count for backend, _, count in self.table.open_by_model(100)}


def test_all_steps_go_where_the_start_went() -> None:
    play = Play(*make_backends(0, 0, 0))
    first = play.start(1)
    play.start(2)
    first.in_flight = 50
    assert {play.run(step(1)) for _ in range(5)} == {first}
    assert play.run(step(1, end=True)) is first


def test_a_number_and_a_text_and_another_model_are_other_sequences() -> None:
    play = Play(*make_backends(0, 0, 0))
    places = [play.start(77), play.start("77"), play.start(77, b"other")]
    assert places[0] is not places[1]
    assert len(play.table) == 3
    assert play.run(step(77)) is places[0]
    assert play.run(step("77")) is places[1]
    assert play.run(step(77, model=b"other")) is places[2]


def test_starts_go_to_the_fewest_open_sequences_and_requests_in_flight() -> None:
    busy, idle = make_backends(8, 0)
    play = Play(busy, idle)
    homes = [play.start(number) for number in range(6)]
    assert homes == [idle, idle, busy, idle, busy, idle]


def test_open_sequences_are_counted_per_model() -> None:
    a, b = make_backends(0, 0)
    play = Play(a, b)
    play.start(1, b"one")
    a.in_flight, b.in_flight = 0, 1
    assert play.start(1, b"two") is a
    assert play.start(2, b"one") is b


def test_weights_share_sequences_out() -> None:
    heavy, light = make_backend("heavy", weight=3.0), make_backend("light")
    play = Play(light, heavy)
    for number in range(400):
        play.start(number)
    assert play.open() == {"heavy": 300, "light": 100}
    assert (heavy.open_sequences, light.open_sequences) == (300, 100)


def test_ties_go_round() -> None:
    play = Play(*make_backends(0, 0, 0))
    places = []
    for number in range(6):
        places.append(play.start(number).name)
        play.run(step(number, end=True))
    assert places == ["b0", "b1", "b2"] * 2


def test_a_full_backend_gets_no_new_sequence() -> None:
    full, other = make_backend("full", max_in_flight=1, in_flight=1), make_backend("other")
    play = Play(full, other)
    assert {play.start(number) for number in range(3)} == {other}
    other.max_in_flight, other.in_flight = 1, 1
    assert play.begin(step(9, start=True)) == (None, None)
    assert len(play.table) == 3


def test_an_end_frees_when_it_has_ended() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    last = step(1, end=True)
    _, pin = play.begin(last)
    assert pin is not None
    assert home.open_sequences == 1
    play.table.ended(last, pin, pin.starts, play.now)
    assert home.open_sequences == 0
    assert len(play.table) == 0
    assert play.begin(step(1)) == (None, None)


def test_a_sequence_of_one_step_counts_while_it_runs() -> None:
    play = Play(*make_backends(0, 0))
    only = step(1, start=True, end=True)
    first, pin = play.begin(only)
    second, _ = play.begin(step(2, start=True, end=True))
    assert first is not second
    assert pin is not None
    play.table.ended(only, pin, pin.starts, play.now)
    assert len(play.table) == 1


def test_a_start_of_an_open_sequence_stays_and_survives_the_end_of_the_old_one() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    last = step(1, end=True)
    _, pin = play.begin(last)
    assert pin is not None
    starts = pin.starts
    assert play.start(1) is home
    play.table.ended(last, pin, starts, play.now)
    assert play.run(step(1)) is home
    assert home.open_sequences == 1


def test_a_step_that_nobody_started_goes_anywhere() -> None:
    play = Play(*make_backends(0, 0))
    assert play.begin(step(1)) == (None, None)
    assert play.begin(step(1, end=True)) == (None, None)
    assert len(play.table) == 0


def test_a_draining_backend_keeps_its_sequences_and_gets_no_new_ones() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    play.eligible = tuple(backend for backend in play.eligible if backend is not home)
    assert play.run(step(1)) is home
    assert home not in {play.start(number) for number in range(2, 9)}
    play.run(step(1, end=True))
    assert home.open_sequences == 0


def test_a_start_of_an_open_sequence_leaves_a_backend_that_gets_nothing_new() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    (other,) = play.eligible = tuple(b for b in play.eligible if b is not home)
    under_way = step(1)
    _, pin = play.begin(under_way)
    assert pin is not None
    assert play.start(1) is home  # the steps under way are followed
    play.table.ended(under_way, pin, pin.starts, play.now)
    assert play.start(1) is other
    assert play.run(step(1)) is other
    assert [home.open_sequences, other.open_sequences] == [0, 1]
    play.eligible = ()
    assert play.start(1) is other


def test_a_start_is_taken_by_a_full_backend_that_counts_it_already() -> None:
    a, b = make_backends(0, 0)
    play = Play(a, b)
    for backend in (a, b):
        backend.max_in_flight = backend.in_flight = 1
    start = step(1, start=True)
    assert play.begin(start) == (None, None)
    found = play.table.place(start, placement((a, b)), IDLE_S, play.now, (), (b,))
    assert found[0] is b


def test_a_step_is_told_that_its_backend_died_and_the_next_start_is_placed_afresh() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start("call-7")
    home.died()
    play.eligible = tuple(backend for backend in play.eligible if backend is not home)
    with pytest.raises(RequestRefused) as refusal:
        play.begin(step("call-7"))
    assert refusal.value.reason is Reason.SEQUENCE_LOST
    assert refusal.value.detail == (
        f'sequence "call-7" of model m is lost: its backend {home.name} has gone; start it again'
    )
    assert play.table.lost == 1
    assert play.begin(step("call-7")) == (None, None)
    assert play.start("call-7") is not home


def test_a_start_after_the_death_is_no_error() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    home.died()
    play.eligible = tuple(backend for backend in play.eligible if backend is not home)
    assert play.start(1) is not home
    assert play.run(step(1)) is not home


def test_what_a_dead_backend_ran_does_not_count_when_it_is_back() -> None:
    a, b = make_backends(0, 0)
    play = Play(a, b)
    for number in range(10):
        play.start(number)
    a.died()
    assert a.open_sequences == 0
    assert play.open() == {b.name: 5}
    assert {play.start(number) for number in range(10, 15)} == {a}
    assert a.open_sequences == 5
    for number in range(10):
        if play.table.backend_of(SequenceKey(b"m", number)) is None:
            with pytest.raises(RequestRefused):
                play.begin(step(number))
    assert a.open_sequences == 5
    assert play.open() == {a.name: 5, b.name: 5}


def test_silence_ends_a_sequence() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    play.now += LIFETIME_S * 0.9
    assert play.run(step(1)) is home
    play.now += LIFETIME_S * 0.9
    assert play.run(step(1)) is home
    play.now += LIFETIME_S
    assert play.begin(step(1)) == (None, None)
    assert play.table.expired == 1
    assert home.open_sequences == 0


def test_a_long_step_is_no_silence() -> None:
    play = Play(*make_backends(0, 0))
    home, pin = play.begin(step(1, start=True))
    assert home is not None
    assert pin is not None
    play.now += LIFETIME_S * 5
    play.table.sweep(play.now, 100)
    play.table.ended(step(1, start=True), pin, pin.starts, play.now)
    play.now += LIFETIME_S * 0.9
    play.table.sweep(play.now, 100)
    assert play.run(step(1)) is home


def test_other_steps_and_sweeps_forget_what_is_silent() -> None:
    play = Play(*make_backends(0, 0))
    for number in range(100):
        play.start(number)
    play.now += LIFETIME_S
    play.start("new")
    assert len(play.table) == 99
    play.table.sweep(play.now, 50)
    assert len(play.table) == 49
    play.table.sweep(play.now, 50)
    assert play.open() == {play.eligible[0].name: 1}


def test_each_model_has_its_own_patience() -> None:
    play = Play(*make_backends(0, 0))
    play.start(1, b"short")
    play.idle_s = 60.0
    play.start(1, b"long")
    play.now += 100.0
    play.table.sweep(play.now, 10)
    assert play.table.backend_of(SequenceKey(b"short", 1)) is None
    assert play.table.backend_of(SequenceKey(b"long", 1)) is not None


def test_what_becomes_known_of_a_model_holds_from_the_next_step() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    play.idle_s = 60.0
    assert play.run(step(1)) is home
    play.now += 500.0
    assert play.run(step(1)) is home
    play.run(step(1, end=True))
    assert len(play.table) == 0


def test_beyond_the_limit_the_one_idle_for_longest_is_forgotten() -> None:
    play = Play(*make_backends(0, 0), limit=3)
    for number in range(3):
        play.start(number)
        play.now += 0.1
    _, pin = play.begin(step(0))
    assert pin is not None
    play.start(3)
    assert len(play.table) == 3
    assert play.table.dropped == 1
    assert play.table.backend_of(SequenceKey(b"m", 1)) is None
    assert play.table.backend_of(SequenceKey(b"m", 0)) is not None


def test_a_lower_limit_forgets_those_idle_for_longest() -> None:
    play = Play(*make_backends(0, 0))
    for number in range(6):
        play.start(number)
        play.now += 0.1
    play.begin(step(0))
    play.table.limit = 3
    play.table.sweep(play.now, 2)
    assert len(play.table) == 4
    play.table.sweep(play.now, 2)
    left = [n for n in range(6) if play.table.backend_of(SequenceKey(b"m", n)) is not None]
    assert left == [0, 4, 5]


def test_steps_under_way_are_not_forgotten_for_room() -> None:
    play = Play(*make_backends(0, 0), limit=2)
    for number in range(4):
        play.begin(step(number, start=True))
    assert len(play.table) == 4
    assert play.table.dropped == 0


def test_a_start_that_surely_did_not_run_leaves_no_pin() -> None:
    play = Play(*make_backends(0, 0))
    first = step(1, start=True)
    home, pin = play.begin(first)
    assert home is not None
    assert pin is not None
    play.table.ended(first, pin, pin.starts, play.now, surely_not_run=True)
    assert home.open_sequences == 0
    again, _ = play.begin(first, tried=(home,))
    assert again is not home


def refuse(play: Play, refused: SequenceStep) -> None:
    """A step that its backend answers with a refusal."""
    _, pin = play.begin(refused)
    assert pin is not None
    play.table.ended(refused, pin, pin.starts, play.now, is_refused=True)


def test_a_start_that_was_refused_is_kept_for_a_few_seconds() -> None:
    play = Play(*make_backends(0, 0))
    for number in range(10):
        refuse(play, step(number, start=True))
    assert [backend.open_sequences for backend in play.eligible] == [5, 5]
    play.now += REFUSED_LIFETIME_S
    play.table.sweep(play.now, 100)
    assert [backend.open_sequences for backend in play.eligible] == [0, 0]


def test_the_next_step_of_a_refused_start_finds_its_backend_and_restores_its_life() -> None:
    play = Play(*make_backends(0, 0))
    refuse(play, step(1, start=True))
    home = play.table.backend_of(SequenceKey(b"m", 1))
    assert home is not None
    play.now += REFUSED_LIFETIME_S - 0.1
    assert play.run(step(1)) is home
    play.now += LIFETIME_S - 0.1
    play.table.sweep(play.now, 100)
    assert play.run(step(1)) is home


def test_steps_that_are_refused_after_their_start_leave_its_life_short() -> None:
    play = Play(*make_backends(0, 0))
    refuse(play, step(1, start=True))
    refuse(play, step(1))
    play.now += REFUSED_LIFETIME_S
    play.table.sweep(play.now, 100)
    assert len(play.table) == 0


def test_a_refusal_says_nothing_of_a_sequence_that_was_open() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    refuse(play, step(1, start=True))
    refuse(play, step(1))
    play.now += LIFETIME_S - 0.1
    play.table.sweep(play.now, 100)
    assert play.run(step(1)) is home


def test_a_refusal_says_nothing_beside_a_step_that_was_taken() -> None:
    play = Play(*make_backends(0, 0))
    first = step(1, start=True)
    home, pin = play.begin(first)
    play.begin(step(1))
    assert home is not None
    assert pin is not None
    play.table.ended(first, pin, pin.starts, play.now, began_at=play.now - 0.1)
    play.table.ended(step(1), pin, pin.starts, play.now, is_refused=True)
    play.now += LIFETIME_S - 0.1
    play.table.sweep(play.now, 100)
    assert play.run(step(1)) is home


def test_a_refusal_makes_no_life_longer() -> None:
    play = Play(*make_backends(0, 0))
    play.idle_s = REFUSED_LIFETIME_S / IDLE_FACTOR / 2
    refuse(play, step(1, start=True))
    play.now += REFUSED_LIFETIME_S / 2
    play.table.sweep(play.now, 100)
    assert len(play.table) == 0


def test_an_end_that_surely_did_not_run_keeps_the_pin() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    last = step(1, end=True)
    _, pin = play.begin(last)
    assert pin is not None
    play.table.ended(last, pin, pin.starts, play.now, surely_not_run=True)
    assert play.run(last) is home
    assert len(play.table) == 0


def test_what_its_backend_does_not_know_any_more_is_open_no_longer() -> None:
    play = Play(*make_backends(0, 0))
    home = play.start(1)
    _, pin = play.begin(step(1))
    assert pin is not None
    play.begin(step(1, start=True))
    play.table.unknown(pin)
    assert home.open_sequences == 1, "a START is under way"
    play.table.ended(step(1, start=True), pin, pin.starts, play.now)
    play.table.unknown(pin)
    assert home.open_sequences == 0
    play.table.unknown(pin)
    play.table.ended(step(1), pin, pin.starts, play.now)
    assert len(play.table) == 0


def test_where_all_were_tried_any_of_them_will_do() -> None:
    (only,) = make_backends(0)
    assert Play(only).begin(step(1, start=True), tried=(only,))[0] is only


def test_nothing_is_left_of_what_has_ended() -> None:
    play = Play(*make_backends(0, 0, 0))
    rng = Random(5)
    for _ in range(2000):
        model = b"m%d" % rng.randrange(5)
        kind = rng.randrange(4)
        if rng.random() < 0.01:
            rng.choice(play.eligible).died()
        play.now += rng.random() * 0.3
        try:
            play.run(step(rng.randrange(20), model=model, start=kind == 0, end=kind == 1))
        except RequestRefused:
            continue
    counted = Counter[str]()
    for backend, _, count in play.table.open_by_model(3):
        counted[backend] += count
    assert counted == {b.name: b.open_sequences for b in play.eligible if b.open_sequences}
    play.now += LIFETIME_S
    play.table.sweep(play.now, 10_000)
    assert len(play.table) == 0
    assert list(play.table.open_by_model(3)) == []
    assert [backend.open_sequences for backend in play.eligible] == [0, 0, 0]
    assert play.table._models == {}


def test_models_beyond_the_limit_are_counted_together() -> None:
    play = Play(*make_backends(0))
    for model, count in ((b"a", 1), (b"b", 2), (b"c", 3)):
        for number in range(count):
            play.start(number, model)
    assert list(play.table.open_by_model(1)) == [("b0", "a", 1), ("b0", "other", 5)]
    assert play.table.counts() == {"started": 6, "lost": 0, "expired": 0, "dropped": 0}


def test_names_of_models_that_nobody_has_fill_no_memory() -> None:
    play = Play(*make_backends(0), limit=1_000_000)
    for number in range(10_050):
        play.start(1, b"%d" % number)
    assert len(play.table) == 10_000
    assert play.table.dropped == 50


# Rendezvous


def test_replicas_agree_without_a_word() -> None:
    replicas = [
        Play(*reversed(make_backends(3, 0, 1)), affinity=Affinity.RENDEZVOUS),
        Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS),
    ]
    for number in range(50):
        for sequence_id in (number, str(number)):
            assert len({play.start(sequence_id).name for play in replicas}) == 1


def test_a_replica_knows_where_another_one_started_a_sequence() -> None:
    one = Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS)
    other = Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS)
    for number in range(50):
        home = one.start(number)
        backend, pin = other.begin(step(number))
        assert backend is not None
        assert backend.name == home.name
        assert pin is not None
        other.table.ended(step(number), pin, pin.starts, other.now)
    assert other.open() == one.open()
    assert other.table.started == 0


def test_a_step_looks_for_a_sequence_in_the_order_of_the_hash() -> None:
    play = Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS)
    tried: tuple[Backend, ...] = ()
    for _ in range(3):
        backend, pin = play.begin(step(1), tried)
        assert backend is not None
        assert pin is not None
        assert backend not in tried
        tried = (*tried, backend)
        play.table.unknown(pin)
        play.table.ended(step(1), pin, pin.starts, play.now, surely_not_run=True)
        assert len(play.table) == 0


def test_a_full_backend_keeps_what_belongs_there() -> None:
    backends = make_backends(0, 0, 0)
    play = Play(*backends, affinity=Affinity.RENDEZVOUS)
    home = Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS).start(1)
    for backend in backends:
        backend.max_in_flight = 1
        backend.in_flight = int(backend.name == home.name)
    started, _ = play.begin(step(2, start=True))
    assert started is not None
    found, _ = play.begin(step(1))
    assert found is not None
    assert found.name == home.name


def test_replicas_stay_within_the_bound_and_find_each_others_sequences() -> None:
    """Each counts only what it has begun, which is the same share of every backend for all."""
    bound = 1.25
    replicas = [Play(*make_backends(0, 0, 0, 0, 0), affinity=Affinity.RENDEZVOUS) for _ in range(3)]
    for play in replicas:
        play.table.bound = bound
    homes = {number: replicas[number % 3].start(number).name for number in range(150)}
    assert max(Counter(homes.values()).values()) <= bound * 150 / 5 + 3
    searching = Play(*make_backends(0, 0, 0, 0, 0), affinity=Affinity.RENDEZVOUS)
    for number, home in homes.items():
        tried: tuple[Backend, ...] = ()
        for _ in range(CHOICES):
            found, pin = searching.begin(step(number), tried)
            assert found is not None
            assert pin is not None
            if found.name == home:
                break
            tried = (*tried, found)
            searching.table.unknown(pin)
        assert len(tried) < CHOICES


def test_a_hash_spreads_by_weight_and_moves_only_what_it_must() -> None:
    backends = (make_backend("a"), make_backend("b", weight=2.0), make_backend("c"))
    play = Play(*backends, affinity=Affinity.RENDEZVOUS)
    before = {number: play.start(number).name for number in range(4000)}
    shares = Counter(before.values())
    assert 0.9 < shares["b"] / 2000 < 1.1
    assert 0.85 < shares["a"] / 1000 < 1.15
    less = Play(*backends[:2], affinity=Affinity.RENDEZVOUS)
    after = {number: less.start(number).name for number in range(4000)}
    assert {after[number] for number, name in before.items() if name == "c"} == {"a", "b"}
    assert all(after[number] == name for number, name in before.items() if name != "c")


def test_pins_win_over_the_hash() -> None:
    play = Play(*make_backends(0, 0, 0), affinity=Affinity.RENDEZVOUS)
    home = play.start(1)
    play.eligible = tuple(backend for backend in play.eligible if backend is not home)
    assert play.run(step(1)) is home


def test_a_sequence_that_did_not_begin_on_its_backend_is_forgotten() -> None:
    a, b = make_backend("a"), make_backend("b")
    play = Play(a, b)
    home = play.start(1)
    key = SequenceKey(b"m", 1)
    other = b if home is a else a
    play.table.forget(key, other)
    assert play.table.backend_of(key) is home
    play.table.forget(key, home)
    play.table.forget(key, home)
    assert play.table.backend_of(key) is None
    assert (home.open_sequences, len(play.table)) == (0, 0)


# Another table


def rows_of(table: SequenceTable) -> list[OpenSequence]:
    found: list[OpenSequence] = []
    begin = 0
    while (part := table.export(begin, 3)) is not None:
        found += part
        begin += 3
    return found


def adopt(table: SequenceTable, rows: Sequence[OpenSequence], backends: Sequence[Backend]) -> None:
    by_name = {backend.name: backend for backend in backends}
    for row in rows:
        table.adopt(row, by_name.get(row.backend), 100.0)


def test_another_table_goes_on_with_what_runs() -> None:
    backends = make_backends(0, 0, 0)
    old, new = Play(*backends), Play(*backends)
    homes = {key: old.start(key) for key in (1, "1", 2**64 - 1, "ü\udcff", 5, 6, 7)}
    old.run(step(5, end=True))
    adopt(new.table, rows_of(old.table), backends)
    assert len(new.table) == 6
    assert {key: new.run(step(key)) for key in homes if key != 5} == {
        key: home for key, home in homes.items() if key != 5
    }
    assert new.run(step(5)) is None


def test_what_is_lost_is_not_passed_on() -> None:
    (one,) = make_backends(0)
    old = Play(one)
    old.start(1)
    one.died()
    assert rows_of(old.table) == []


def test_a_sequence_with_a_step_under_way_is_known_better_here() -> None:
    one, two = make_backends(0, 0)
    new = Play(one, two)
    new.eligible = (one,)
    backend, pin = new.begin(step(1, start=True))
    assert backend is one
    adopt(new.table, [OpenSequence(SequenceKey(b"m", 1), two.name, LIFETIME_S)], (one, two))
    assert new.table.backend_of(SequenceKey(b"m", 1)) is one
    assert pin is not None
    new.table.ended(step(1, start=True), pin, pin.starts, new.now)
    adopt(new.table, [OpenSequence(SequenceKey(b"m", 1), two.name, LIFETIME_S)], (one, two))
    assert new.table.backend_of(SequenceKey(b"m", 1)) is two
    assert (one.open_sequences, two.open_sequences) == (0, 1)


def test_every_beginning_and_end_is_told() -> None:
    (one,) = make_backends(0)
    play = Play(one)
    play.start(1)
    told: list[OpenSequence] = []
    play.table.on_change = told.append
    play.start("2")
    play.run(step(1, end=True))
    assert told == [
        OpenSequence(SequenceKey(b"m", "2"), one.name, LIFETIME_S),
        OpenSequence(SequenceKey(b"m", 1), ""),
    ]
