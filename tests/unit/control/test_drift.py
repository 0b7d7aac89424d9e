from __future__ import annotations

from lb.control.directory import BackendDirectory
from lb.control.drift import Drift, DriftComparison, ready_backends, table_statuses
from lb.control.record import Setup
from lb.domain.backend import AdminState
from tests.unit.control.test_directory import lists, make_directory

NOW = 110.0


def drift(directory: BackendDirectory, name: str) -> Drift:
    return DriftComparison(directory).drift(directory.find(name))


def test_what_another_backend_has_ready_is_drift() -> None:
    directory = make_directory("a", "b", "c")
    lists(directory, "a", "m", "n")
    lists(directory, "b", "m")
    assert drift(directory, "a") == Drift()
    assert drift(directory, "b") == Drift(models=("n",))
    assert drift(directory, "c") == Drift()  # it has not been asked yet


def test_what_a_disabled_backend_has_is_no_measure() -> None:
    directory = make_directory("a", "b")
    lists(directory, "a", "m")
    lists(directory, "b")
    directory.set_admin("a", AdminState.DISABLED, NOW)
    assert drift(directory, "b") == Drift()


def test_settings_that_are_otherwise_on_most_are_drift() -> None:
    directory = make_directory("a", "b", "c")
    for name, level in (("a", 0), ("b", 0), ("c", 1)):
        lists(directory, name, "m")
        log = {"log_verbose_level": level, "log_info": True}
        directory.find(name).learn(Setup(log=dict(log)))
    assert drift(directory, "a") == Drift()
    assert drift(directory, "c") == Drift(settings=("log_verbose_level",))


def test_models_that_are_configured_otherwise_on_most_are_drift() -> None:
    directory = make_directory("a", "b", "c", "off")
    for name, digest in (("a", 1), ("b", 1), ("c", 2), ("off", 3)):
        lists(directory, name, "m")
        backend = directory.find(name).backend
        directory.configurations.note(backend, (b"m", b"1"), digest)
    directory.set_admin("off", AdminState.DISABLED, NOW)
    assert drift(directory, "a") == Drift()
    assert drift(directory, "c") == Drift(configurations=("m",))
    assert [each.reconfigured for each in table_statuses(directory, NOW)] == [0, 0, 1, 0]


def test_metrics_count_what_views_name() -> None:
    directory = make_directory("a", "b", "c")
    lists(directory, "a", "m", "n", now=108.0)
    lists(directory, "b", "m", now=109.0)
    rows = [
        (s.backend, s.ready, s.age_s, s.missing, s.differing)
        for s in table_statuses(directory, NOW)
    ]
    assert rows == [("a", 2, 2.0, 0, 0), ("b", 1, 1.0, 1, 0)]
    assert ready_backends(directory, 100) == [("m", 2), ("n", 1)]
    assert ready_backends(directory, 1) == [("m", 2)]
