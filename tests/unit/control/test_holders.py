from __future__ import annotations

from lb.control.holders import Holders
from lb.domain.backend import Backend
from lb.health.models import Version
from tests.fakes.backends import make_backend

A, B, C = (make_backend(name) for name in "abc")
M1, M2, N1 = (b"m", b"1"), (b"m", b"2"), (b"n", b"1")


def has(*versions: Version) -> frozenset[Version]:
    return frozenset(versions)


def whose(holders: Holders, name: bytes) -> dict[bytes, str]:
    """The backends that have each version of a model."""
    found: dict[bytes, str] = {}
    for version, mask in holders.patterns.get(name, ()):
        found[version] = "".join(b.name for b, bit in holders.bits.items() if mask & bit)
    return found


def test_each_version_knows_its_backends() -> None:
    holders = Holders()
    assert holders.update({A: has(M1, M2), B: has(M1), C: has()}) == {b"m"}
    assert whose(holders, b"m") == {b"1": "ab", b"2": "a"}


def test_only_what_differs_changes() -> None:
    holders = Holders()
    ready = has(M1, N1)
    holders.update({A: ready, B: ready})
    assert holders.update({A: ready, B: has(M1, N1)}) == set()
    assert holders.update({A: ready, B: has(M2, N1)}) == {b"m"}
    assert whose(holders, b"m") == {b"1": "a", b"2": "b"}
    assert whose(holders, b"n") == {b"1": "ab"}


def test_models_on_the_same_backends_have_equal_patterns() -> None:
    holders = Holders()
    holders.update({A: has(M1, N1), B: has(M1)})
    holders.update({A: has(M1, N1), B: has(M1, N1)})
    assert holders.patterns[b"m"] == holders.patterns[b"n"]


def test_who_leaves_is_forgotten_and_its_bit_used_again() -> None:
    holders = Holders()
    holders.update({A: has(M1), B: has(M1, N1)})
    bits: dict[Backend, int] = dict(holders.bits)
    assert holders.update({A: has(M1)}) == {b"m", b"n"}
    assert holders.patterns.keys() == {b"m"}
    holders.update({A: has(M1), C: has(N1)})
    assert set(holders.bits.values()) == set(bits.values())
    assert whose(holders, b"n") == {b"1": "c"}
