"""Which backends have which versions of which models, kept up to date by differences.

Who has a version is a number with one bit per backend; all models that are on the same backends
have equal patterns, so what follows from a pattern is found out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lb.domain.backend import Backend
from lb.health.models import Version

Pattern = tuple[tuple[bytes, int], ...]
"""The versions of one model, in order, and the backends that have each ready: a bit for each."""

_NOTHING: frozenset[Version] = frozenset()


class Holders:
    """Remembers what backends have ready; each change costs as much as it changes."""

    __slots__ = ("_free", "_ready", "bits", "patterns")

    def __init__(self) -> None:
        self.bits: dict[Backend, int] = {}
        """The bit of each backend."""
        self.patterns: dict[bytes, Pattern] = {}
        """By name; of models that are ready anywhere."""
        self._ready: dict[Backend, frozenset[Version]] = {}
        self._free: list[int] = []

    def update(self, ready: Mapping[Backend, frozenset[Version]]) -> set[bytes]:
        """Take over what all backends have ready; who is not named has nothing.

        Returns:
            The models whose pattern may have changed.
        """
        changed: set[bytes] = set()
        for backend in self._ready.keys() - ready.keys():
            bit = self.bits[backend]
            self._replace(bit, self._ready.pop(backend), _NOTHING, changed)
            del self.bits[backend]
            self._free.append(bit)
        for backend, now in ready.items():
            before = self._ready.get(backend, _NOTHING)
            if now is before and backend in self.bits:
                continue
            if backend not in self.bits:
                self.bits[backend] = self._free.pop() if self._free else 1 << len(self.bits)
            self._ready[backend] = now
            self._replace(self.bits[backend], before, now, changed)
        return changed

    def _replace(
        self, bit: int, before: frozenset[Version], now: frozenset[Version], changed: set[bytes]
    ) -> None:
        self._flip(bit, before - now, changed)
        self._flip(bit, now - before, changed)

    def _flip(self, bit: int, versions: Iterable[Version], changed: set[bytes]) -> None:
        """Give a backend the versions that it does not have, or take those that it has."""
        patterns = self.patterns
        flipped: dict[tuple[Pattern, bytes], Pattern] = {}
        for name, version in versions:
            before = patterns.get(name, ())
            now = flipped.get((before, version))
            if now is None:
                now = flipped[before, version] = _flipped(before, version, bit)
            if now:
                patterns[name] = now
            else:
                del patterns[name]
            changed.add(name)


def _flipped(pattern: Pattern, version: bytes, bit: int) -> Pattern:
    holders = dict(pattern)
    holders[version] = holders.get(version, 0) ^ bit
    return tuple(sorted((each, mask) for each, mask in holders.items() if mask))
