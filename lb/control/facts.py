"""Reads the configuration of models in the background: once per version and load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelFacts
from lb.health.models import Version
from lb.kserve.facts import UNKNOWN, Configured, resolve
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

_READERS: Final = 4
"""Configurations that are read at once."""
_RATE: Final = 20.0
"""Configurations that are read in a second, beside one for each model that joins the others: names
that are replaced by new ones again and again cost no more than that."""
_BURST: Final = 200
"""Configurations that may be read at once after a while without any: those of models that were
loaded again on many backends."""
_AGAIN_S: Final = 60.0
"""When to ask again for what could not be read."""
_PUBLISH_EVERY: Final = 32
"""Configurations that are read before what is known is published, at the beginning."""
_PUBLISH_SHARE: Final = 4
"""A part of those known that has to be new before it is published again: publishing takes as long
as there are models."""


class FactsKeeper:
    """Knows what the configurations say that matters here."""

    def __init__(
        self,
        questions: Questions,
        tasks: TaskOwner,
        publish: Callable[[Mapping[bytes, ModelFacts]], None],
        clock: Callable[[], float],
    ) -> None:
        self._questions = questions
        self._tasks = tasks
        self._publish = publish
        self._clock = clock
        self._known: dict[Version, Configured] = {}
        self._failed: dict[Version, float] = {}
        """What could not be read, and when to ask for it again."""
        self._reading: set[Version] = set()
        self._wanted: dict[Version, BackendRecord] = {}
        """What is to be read, and from whom."""
        self._readers = 0
        self._most_ready = 0
        """The largest number of versions that were ready at the same time."""
        self._credit = float(_BURST)
        """Configurations that may be read now."""
        self._credited_at = clock()
        self._unpublished = 0
        """Changes of what is known since it was published."""
        self.idle = asyncio.Event()
        """Set while nothing is left to be read."""
        self.idle.set()

    def read(self, record: BackendRecord, versions: Iterable[Version]) -> None:
        """Read what `record` says of `versions`; what was known stays until then."""
        self._wanted.update(dict.fromkeys(versions, record))
        if self._wanted:
            self.idle.clear()
        while self._readers < min(_READERS, len(self._wanted)):
            self._readers += 1
            self._tasks.spawn(self._read_wanted(), name="models: read configurations")

    def ensembles(self) -> dict[bytes, frozenset[bytes]]:
        """The models that ensembles run, as far as it was read, also of those that are not ready
        any more."""
        found: dict[bytes, frozenset[bytes]] = {}
        for (name, _), configured in self._known.items():
            if configured.steps:
                found[name] = found.get(name, frozenset()).union(configured.steps)
        return found

    def is_known(self, model: bytes) -> bool:
        """Whether the configuration of some version of a model was read."""
        return any(name == model for name, _ in self._known)

    def read_missing(self, record: BackendRecord) -> None:
        """Read what is ready there and nobody has told yet."""
        ready = record.models.ready
        missing = ready.difference(self._known, self._wanted, self._reading)
        if missing:
            now = self._clock()
            self.read(record, [each for each in missing if now >= self._failed.get(each, now)])

    def retain(self, names: frozenset[bytes], ready: frozenset[Version]) -> None:
        """Forget models that nobody lists any more, and versions that others have replaced.

        Args:
            names: of models that are listed.
            ready: what is ready anywhere. What is known of a model of which nothing is ready stays:
                it may be about to be loaded again.
        """
        if len(ready) > self._most_ready:
            self._credit += len(ready) - self._most_ready
            self._most_ready = len(ready)
        for version in [each for each in self._wanted if each not in ready]:
            del self._wanted[version]
        replaced = {version[0] for version in ready}
        for known in (self._known, self._failed):
            gone = [
                version
                for version in known
                if version[0] not in names or (version[0] in replaced and version not in ready)
            ]
            for version in gone:
                del known[version]
            self._unpublished += len(gone)

    async def _read_wanted(self) -> None:
        try:
            while self._wanted:
                if (pause_s := self._pause_s()) > 0:
                    await asyncio.sleep(pause_s)
                    continue
                self._credit -= 1
                version = next(iter(self._wanted))
                record = self._wanted.pop(version)
                self._reading.add(version)
                try:
                    await self._read(record, version)
                finally:
                    self._reading.discard(version)
                if self._unpublished >= max(_PUBLISH_EVERY, len(self._known) // _PUBLISH_SHARE):
                    self._conclude()
        finally:
            self._readers -= 1
        if not self._readers:
            if self._unpublished:
                self._conclude()
            self.idle.set()

    def _pause_s(self) -> float:
        """Seconds until one more configuration may be read."""
        now = self._clock()
        earned = (now - self._credited_at) * _RATE
        self._credit = max(self._credit, min(self._credit + earned, _BURST))
        self._credited_at = now
        return (1 - self._credit) / _RATE

    async def _read(self, record: BackendRecord, version: Version) -> None:
        try:
            found = await self._questions.config(record, version)
        except (NotOffered, UpstreamError, ValueError) as error:
            is_news = version not in self._failed
            level = logging.INFO if is_news else logging.DEBUG
            self._failed[version] = self._clock() + _AGAIN_S
            self._unpublished += is_news
            fields = {"backend": record.backend.name, "model": version[0].decode(errors="replace")}
            _log.log(level, "configuration not read", extra={**fields, "why": str(error)})
        else:
            # Mostly it is what others have said.
            self._unpublished += self._known.get(version) != found
            self._known[version] = found
            self._failed.pop(version, None)

    def _conclude(self) -> None:
        self._unpublished = 0
        models: dict[bytes, list[Configured]] = {}
        for version, configured in self._known.items():
            models.setdefault(version[0], []).append(configured)
        for version in {*self._failed, *self._wanted, *self._reading} - self._known.keys():
            models.setdefault(version[0], []).append(UNKNOWN)
        self._publish(resolve(models))
