from __future__ import annotations

from lb.domain.model import ModelEntry, ModelState
from lb.health.models import MAX_ENTRIES, ModelList, ModelTable

A = (b"a", b"1")
READY, LOADING, UNAVAILABLE = ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE


def entry(name: str, version: str = "1", state: ModelState = READY) -> ModelEntry:
    return ModelEntry(name.encode(), version.encode(), state)


def make_table(*entries: ModelEntry, asked_at: float = 10.0) -> ModelTable:
    table = ModelTable()
    table.listed(ModelList(entries), asked_at)
    return table


def test_nothing_is_known_at_first() -> None:
    table = ModelTable()
    assert table.lists is None
    assert table.ready == frozenset()
    assert table.age_s(5.0) is None


def test_what_is_listed_as_ready_is_ready() -> None:
    table = make_table(entry("a"), entry("a", "2", LOADING), entry("b", "", UNAVAILABLE))
    assert table.lists is True
    assert table.ready == {(b"a", b"1")}
    assert table.names == {b"a", b"b"}
    assert table.has_ready_models
    assert table.age_s(12.5) == 2.5


def test_a_list_tells_what_became_ready() -> None:
    table = ModelTable()
    assert table.listed(ModelList([entry("a")]), 1.0) == {(b"a", b"1")}
    assert table.listed(ModelList([entry("a"), entry("b")]), 2.0) == {(b"b", b"1")}
    assert table.listed(ModelList([entry("b")]), 3.0) == frozenset()
    assert table.listed(ModelList([entry("a"), entry("b")]), 4.0) == {(b"a", b"1")}


def test_a_contradiction_counts_until_a_list_that_was_asked_for_later() -> None:
    table = make_table(entry("a"), entry("b"))
    assert table.contradicted(A, 20.0)
    assert table.ready == {(b"b", b"1")}
    table.listed(ModelList([entry("a"), entry("b")]), 19.0)
    assert table.ready == {(b"b", b"1")}
    table.confirmed(21.0)
    assert table.ready == {(b"a", b"1"), (b"b", b"1")}


def test_a_contradiction_of_one_version_leaves_the_others() -> None:
    table = make_table(entry("a"), entry("a", "2"))
    assert table.contradicted((b"a", b"2"), 20.0)
    assert table.ready == {(b"a", b"1")}
    assert [table.state_of(each) for each in table.entries] == [READY, UNAVAILABLE]


def test_the_same_contradiction_is_no_news_twice() -> None:
    table = make_table(entry("a"))
    assert table.contradicted(A, 20.0)
    assert not table.contradicted(A, 21.0)
    assert not table.contradicted((b"never heard of", b"1"), 21.0)
    assert not table.has_ready_models


def test_a_model_that_was_contradicted_is_not_news_when_it_is_listed_again() -> None:
    table = make_table(entry("a"))
    table.contradicted(A, 20.0)
    assert table.listed(ModelList([entry("a")]), 21.0) == frozenset()


def test_a_table_is_changing_while_a_model_loads_or_unloads() -> None:
    assert not make_table(entry("a")).is_changing
    assert make_table(entry("a"), entry("b", "1", LOADING)).is_changing
    assert make_table(entry("b", "1", ModelState.UNLOADING)).is_changing


def test_the_ready_set_stays_the_same_object_while_lists_are_confirmed() -> None:
    table = make_table(entry("a"))
    ready = table.ready
    table.confirmed(11.0)
    assert table.ready is ready


def test_a_backend_that_cannot_list_keeps_no_list() -> None:
    table = make_table(entry("a"))
    table.cannot_list()
    assert table.lists is False
    assert table.entries == ()
    assert table.age_s(20.0) is None


def test_a_list_without_end_counts_as_none() -> None:
    table = ModelTable()
    table.listed(ModelList([entry(f"m{at}") for at in range(MAX_ENTRIES + 1)]), 10.0)
    assert table.lists is False
    assert table.ready == frozenset()


def test_forgetting_forgets_contradictions_too() -> None:
    table = make_table(entry("a"))
    table.contradicted(A, 20.0)
    table.forget()
    assert table.lists is None
    assert table.listed(ModelList([entry("a")]), 5.0) == {(b"a", b"1")}
    assert table.ready == {(b"a", b"1")}


def test_equal_sets_of_two_backends_become_one_object() -> None:
    one, same, other = make_table(entry("a")), make_table(entry("a")), make_table(entry("b"))
    assert same.share(one)
    assert same.ready is one.ready
    assert same.names is one.names
    assert not other.share(one)
    assert other.ready == {(b"b", b"1")}


def test_a_contradiction_outlives_sharing() -> None:
    one, same = make_table(entry("a")), make_table(entry("a"))
    same.contradicted(A, 20.0)
    assert same.share(one)
    assert same.ready == frozenset()
    assert one.has_ready_models


def test_what_is_withheld_is_not_ready_until_it_is_let_go() -> None:
    table = ModelTable()
    entries = [ModelEntry(name, b"1", ModelState.READY) for name in (b"m", b"n")]
    assert not table.withhold(frozenset({b"m"}))
    assert table.listed(ModelList(entries), 1.0) == {(b"n", b"1")}
    assert table.ready == {(b"n", b"1")}
    assert table.state_of(entries[0]) is ModelState.LOADING
    assert table.state_of(entries[1]) is ModelState.READY
    assert table.withhold(frozenset())
    assert table.ready == {(b"m", b"1"), (b"n", b"1")}


def test_what_is_cold_is_not_ready_until_it_is_warm() -> None:
    table = make_table(entry("a"), entry("b"))
    assert table.keep_cold(frozenset({A}))
    assert table.ready == {(b"b", b"1")}
    assert table.state_of(entry("a")) is ModelState.LOADING
    assert not table.keep_cold(frozenset({A}))
    assert table.keep_cold(frozenset())
    assert table.ready == {(b"a", b"1"), (b"b", b"1")}
