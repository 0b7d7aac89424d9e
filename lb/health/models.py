"""Which models one backend has, as far as it is known: its own list, and what its answers say.

A list is asked for from time to time. Between two lists an answer that contradicts it ("unknown
model", "not at ready state") counts until a list that was asked for after it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from lb.domain.model import ModelEntry, ModelState

Version = tuple[bytes, bytes]
"""A model's name and one of its versions, as they stand on the wire."""

MAX_ENTRIES: Final = 10_000
"""Longer lists are not kept: the backend then counts as having any model."""
_CHANGING: Final = (ModelState.LOADING, ModelState.UNLOADING)
_NONE: Final[frozenset[Version]] = frozenset()


@lru_cache(maxsize=16)
def names_of(versions: frozenset[Version]) -> frozenset[bytes]:
    """The names in a set of versions. Most backends share one set, and have had it for long."""
    return frozenset([name for name, _ in versions])


class ModelList:
    """One list of models, and what follows from it: it never changes, so backends may share it."""

    __slots__ = ("entries", "is_changing", "names", "ready")

    def __init__(self, entries: Iterable[ModelEntry] = ()) -> None:
        self.entries = tuple(entries)
        self.names = frozenset(entry.name for entry in self.entries)
        """Of all models listed, ready or not."""
        self.ready: frozenset[Version] = frozenset(
            (entry.name, entry.version) for entry in self.entries if entry.state is ModelState.READY
        )
        self.is_changing = any(entry.state in _CHANGING for entry in self.entries)
        """Whether some model is being loaded or unloaded: another list is due soon."""

    @classmethod
    def joined(cls, parts: Sequence[ModelList]) -> ModelList:
        """Make one list of several. To look at each line takes ten times as long, so that is done
        when the parts are made."""
        whole = cls()
        whole.entries = tuple(chain.from_iterable(part.entries for part in parts))
        whole.names = whole.names.union(*[part.names for part in parts])
        whole.ready = whole.ready.union(*[part.ready for part in parts])
        whole.is_changing = any(part.is_changing for part in parts)
        return whole


_EMPTY: Final = ModelList()


class ModelTable:
    """The models of one backend. Times are monotonic seconds."""

    __slots__ = (
        "_absent", "_list", "_listed_ready", "_withheld", "asked_at", "cold", "had", "lists",
        "names", "ready", "times_forgotten",
    )  # fmt: skip

    def __init__(self) -> None:
        self.had: frozenset[Version] = _NONE
        """What it had ready when it was last known, until it lists its models again."""
        self.times_forgotten = 0
        """How often the process was taken to be another one. A list that was asked for before the
        last time says nothing."""
        self._clear()

    def forget(self) -> None:
        """Know nothing again but what it had: the process may be another one."""
        self.times_forgotten += 1
        self.had = self._listed_ready or self.had
        self._clear()

    def _clear(self) -> None:
        self.lists: bool | None = None
        """Whether it lists its models at all; None: not known yet."""
        self._list = _EMPTY
        self.names: frozenset[bytes] = frozenset()
        """Of all models listed, ready or not."""
        self.ready: frozenset[Version] = _NONE
        """What may be asked of it, contradictions and what is withheld taken off."""
        self.asked_at: float | None = None
        """When the newest list was asked for."""
        self._listed_ready: frozenset[Version] = _NONE
        self._absent: dict[Version, float] = {}
        """Ready by the list, and when an answer said otherwise."""
        self._withheld: frozenset[bytes] = frozenset()
        """Models that get no requests yet, whatever the list says."""
        self.cold: frozenset[Version] = _NONE
        """What gets no requests before it is warmed up, whatever the list says."""

    def doubt(self) -> None:
        """Know nothing again but the names of its models: the process may be another one, with the
        same repository. Requests for these models can then wait for the next list."""
        names = self.names
        self.forget()
        self.names = names

    @property
    def has_ready_models(self) -> bool:
        """Whether it is known to have a model ready."""
        return bool(self.ready)

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """The newest list, line by line."""
        return self._list.entries

    @property
    def is_changing(self) -> bool:
        """Whether some model is being loaded or unloaded: another list is due soon."""
        return self._list.is_changing

    def listed(self, models: ModelList, asked_at: float) -> frozenset[Version]:
        """Take over a list that was asked for at `asked_at`.

        Returns:
            What has become ready since the list before.
        """
        if len(models.entries) > MAX_ENTRIES:
            self.cannot_list()
            return _NONE
        before = self._listed_ready
        self.had = _NONE
        self.lists = True
        self._list = models
        self.names = models.names
        self._listed_ready = models.ready
        self.cold &= models.ready
        self.confirmed(asked_at)
        return (self._listed_ready - before) & self.ready

    def confirmed(self, asked_at: float) -> None:
        """A list that was asked for at `asked_at` says the same as the one before."""
        self.asked_at = asked_at
        self._absent = {key: since for key, since in self._absent.items() if since >= asked_at}
        self._conclude()

    def cannot_list(self) -> None:
        """It has no list, or gives it to nobody like us: it may have any model."""
        self._clear()
        self.had = _NONE
        self.lists = False

    def contradicted(self, version: Version, now: float) -> bool:
        """It answered that it does not have that ready. Returns whether that is news."""
        if version not in self.ready:
            return False
        self._absent[version] = now
        self._conclude()
        return True

    def lacks(self, model: bytes, now: float) -> bool:
        """It answered that it has no version of a model ready. Returns whether that is news."""
        if model not in self.names:
            return False
        news = [version for version in self.ready if version[0] == model]
        self._absent.update(dict.fromkeys(news, now))
        self._conclude()
        return bool(news)

    def withhold(self, names: frozenset[bytes]) -> bool:
        """Count these models as not ready, and no others, until told otherwise.

        Returns whether that changes what is ready.
        """
        before = self.ready
        self._withheld = names
        self._conclude()
        return self.ready != before

    def keep_cold(self, versions: frozenset[Version]) -> bool:
        """Count these versions as not ready, and no others, until told otherwise.

        Returns whether that changes what is ready.
        """
        before = self.ready
        self.cold = versions
        self._conclude()
        return self.ready != before

    def share(self, other: ModelTable) -> bool:
        """Use the sets of another backend where they are the same.

        Most backends of a pool have the same models; sets that are one object need not be
        compared each time that all backends are looked at. Returns whether all are the same now.
        """
        if self.names is not other.names and self.names == other.names:
            self.names = other.names
        ready = other._listed_ready
        if self._listed_ready is not ready and self._listed_ready == ready:
            self._listed_ready = ready
            self._conclude()
        return self.names is other.names and self._listed_ready is ready

    def age_s(self, now: float) -> float | None:
        """How old the list is; None where there is none."""
        return None if self.asked_at is None else now - self.asked_at

    def state_of(self, entry: ModelEntry) -> ModelState:
        """The state of a line of the list, contradictions taken into account."""
        if entry.state is not ModelState.READY:
            return entry.state
        if (entry.name, entry.version) in self._absent:
            return ModelState.UNAVAILABLE
        if entry.name in self._withheld or (entry.name, entry.version) in self.cold:
            return ModelState.LOADING
        return entry.state

    def _conclude(self) -> None:
        # The same object as long as nothing contradicts: equal sets are then found by identity.
        ready = self._listed_ready
        if self._absent:
            ready = ready.difference(self._absent)
        if self.cold:
            ready = ready.difference(self.cold)
        if self._withheld:
            ready = frozenset(each for each in ready if each[0] not in self._withheld)
        self.ready = ready
