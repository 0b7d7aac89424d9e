from __future__ import annotations

import pytest

from lb.domain.backend import Address, AppProtocol, Backend, BackendSpec
from lb.domain.load import DeviceLoad
from lb.health.devices import DeviceBook
from tests.fakes.backends import make_backend


def gpu(utilization: float | None, device: bytes = b"GPU-1") -> tuple[DeviceLoad, ...]:
    return (DeviceLoad(device=device, utilization=utilization),)


def ours(backend: Backend, count: int, took_s: float) -> None:
    """So many of our requests have ended."""
    port = backend.port(AppProtocol.HTTP)
    port.attempts += count
    port.latency.sum += count * took_s


def test_what_nobody_of_us_uses_is_used_by_others() -> None:
    book, backend = DeviceBook(), make_backend("a")
    assert book.others(backend, gpu(0.7), 1.0) == pytest.approx(0.7)
    assert book.others(backend, gpu(0.2), 2.0) == pytest.approx(0.2)


def test_our_own_little_share_is_taken_off_as_if_it_had_all_been_just_then() -> None:
    book, backend = DeviceBook(), make_backend("a")
    book.others(backend, gpu(0.0), 1.0)
    ours(backend, 10, 0.01)
    assert book.others(backend, gpu(0.5), 2.0) == pytest.approx(0.3)
    assert book.others(backend, gpu(0.1), 3.0) == 0.0


def test_where_we_have_more_others_cannot_be_told_nor_shortly_after() -> None:
    book, backend = DeviceBook(), make_backend("a")
    book.others(backend, gpu(0.0), 1.0)
    ours(backend, 100, 0.005)
    assert book.others(backend, gpu(0.9), 2.0) is None
    assert book.others(backend, gpu(0.9), 4.0) is None, "its utilisation may be that old"
    assert book.others(backend, gpu(0.6), 6.0) == pytest.approx(0.6)


def test_a_request_that_runs_may_be_what_it_is_busy_with() -> None:
    book, backend = DeviceBook(), make_backend("a")
    book.others(backend, gpu(0.0), 1.0)
    backend.in_flight = 1
    assert book.others(backend, gpu(0.9), 2.0) is None
    assert book.others(backend, gpu(0.9), 30.0) is None
    backend.in_flight = 0
    assert book.others(backend, gpu(0.9), 31.0) is None
    assert book.others(backend, gpu(0.9), 35.0) == pytest.approx(0.9)


def test_what_it_has_at_first_may_be_ours_only_if_it_is_under_way() -> None:
    backend = make_backend("a")
    ours(backend, 100, 10.0)
    assert DeviceBook().others(backend, gpu(0.9), 1000.0) == pytest.approx(0.9)
    backend.in_flight = 1
    assert DeviceBook().others(backend, gpu(0.9), 1000.0) is None


def test_tritons_on_one_device_share_what_we_have_there() -> None:
    book, one, two = DeviceBook(), make_backend("a"), make_backend("b")
    for backend in (one, two):
        book.others(backend, gpu(0.0), 1.0)
    ours(one, 100, 0.008)
    assert book.others(one, gpu(0.8), 2.0) is None
    assert book.others(two, gpu(0.8), 2.0) is None
    assert book.others(make_backend("c"), gpu(0.8, b"GPU-2"), 2.0) == pytest.approx(0.8)
    book.follow([two], 3.0)
    assert book.others(two, gpu(0.8), 3.0) == pytest.approx(0.8)


def test_a_triton_that_tells_of_no_device_may_be_on_any_of_its_machine() -> None:
    book, one, silent = DeviceBook(), make_backend("a"), make_backend("b")
    far = Backend(BackendSpec(name="c", http=Address("10.0.0.1", 8000)))
    book.follow([one, silent, far], 1.0)
    ours(far, 100, 0.01)
    assert book.others(one, gpu(0.8), 2.0) == pytest.approx(0.8)
    ours(silent, 100, 0.01)
    assert book.others(one, gpu(0.8), 3.0) is None


def test_several_devices_count_as_their_mean() -> None:
    book, backend = DeviceBook(), make_backend("a")
    both = gpu(0.8) + gpu(0.4, b"GPU-2") + gpu(None, b"GPU-3")
    assert book.others(backend, both, 1.0) == pytest.approx(0.6)


def test_a_slice_that_tells_nothing_says_nothing() -> None:
    book, backend = DeviceBook(), make_backend("a")
    assert book.others(backend, gpu(None), 1.0) is None
    assert book.others(backend, (), 2.0) is None
