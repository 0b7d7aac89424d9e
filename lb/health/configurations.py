"""Which configuration each backend runs a version of a model with, as far as it was read.

Of each only a digest is kept. Backends are compared as soon as two are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lb.domain.backend import Backend
from lb.health.models import Version

MAX_DIGESTS: Final = 100_000
"""About 12 MB; more are not kept, so that not everything is compared."""


class ConfigurationBook:
    """Digests by version and backend."""

    __slots__ = ("_digests", "count", "differing")

    def __init__(self) -> None:
        self._digests: dict[Version, dict[Backend, int]] = {}
        self.count = 0
        """Digests that are kept."""
        self.differing: dict[Version, Mapping[Backend, int]] = {}
        """Versions that are not configured alike everywhere."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more is kept."""
        return self.count >= MAX_DIGESTS

    def digest(self, backend: Backend, version: Version) -> int | None:
        """What is known of one backend; None: nothing."""
        return self._digests.get(version, {}).get(backend)

    def note(self, backend: Backend, version: Version, digest: int) -> bool:
        """Keep what was read. Returns whether the backends do not agree any more since then."""
        known = self._digests.get(version)
        if known is None or backend not in known:
            if self.is_full:
                return False
            self.count += 1
        if known is None:
            known = self._digests[version] = {}
        # Equal numbers as one object: most backends agree.
        known[backend] = next((each for each in known.values() if each == digest), digest)
        did_differ = version in self.differing
        self._compare(version)
        return version in self.differing and not did_differ

    def forget(self, backend: Backend, is_forgotten: Callable[[Version], bool]) -> None:
        """Forget what is known of one backend and those versions."""
        for version in [each for each, known in self._digests.items() if backend in known]:
            if is_forgotten(version):
                self.drop(backend, version)

    def forget_model(self, name: bytes, backends: Iterable[Backend]) -> None:
        """Forget how some backends configure a model."""
        for version in [each for each in self._digests if each[0] == name]:
            for backend in self._digests[version].keys() & set(backends):
                self.drop(backend, version)

    def drop(self, backend: Backend, version: Version) -> None:
        """Forget what is known of one backend and one version."""
        known = self._digests.get(version, {})
        if known.pop(backend, None) is None:
            return
        self.count -= 1
        if not known:
            del self._digests[version]
        self._compare(version)

    def _compare(self, version: Version) -> None:
        known = self._digests.get(version, {})
        if len(set(known.values())) > 1:
            self.differing[version] = known
        else:
            self.differing.pop(version, None)


def deviating(digests: Mapping[Backend, int], among: Iterable[Backend]) -> frozenset[Backend]:
    """Those of some backends whose configuration is not that of more than half of them."""
    known = {backend: digests[backend] for backend in among if backend in digests}
    if not known:
        return frozenset()
    [(usual, count)] = Counter(known.values()).most_common(1)
    if 2 * count <= len(known):
        return frozenset(known)
    return frozenset(backend for backend, digest in known.items() if digest != usual)
