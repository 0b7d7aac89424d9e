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
_AGAIN_S: Final = 60.0
"""When to ask again for what could not be read."""
_PUBLISH_EVERY: Final = 32


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

    def read_missing(self, record: BackendRecord) -> None:
        """Read what is ready there and nobody has told yet."""
        ready = record.models.ready
        missing = ready.difference(self._known, self._wanted, self._reading)
        if missing:
            now = self._clock()
            self.read(record, [each for each in missing if now >= self._failed.get(each, now)])

    def retain(self, names: frozenset[bytes]) -> None:
        """Forget models that nobody lists any more."""
        for known in (self._known, self._failed):
            for version in [version for version in known if version[0] not in names]:
                del known[version]

    async def _read_wanted(self) -> None:
        try:
            count = 0
            while self._wanted:
                version = next(iter(self._wanted))
                record = self._wanted.pop(version)
                self._reading.add(version)
                try:
                    await self._read(record, version)
                finally:
                    self._reading.discard(version)
                count += 1
                if count % _PUBLISH_EVERY == 0:
                    self._conclude()
        finally:
            self._readers -= 1
        if not self._readers:
            self._conclude()
            self.idle.set()

    async def _read(self, record: BackendRecord, version: Version) -> None:
        try:
            self._known[version] = await self._questions.config(record, version)
        except (NotOffered, UpstreamError, ValueError) as error:
            level = logging.DEBUG if version in self._failed else logging.INFO
            self._failed[version] = self._clock() + _AGAIN_S
            fields = {"backend": record.backend.name, "model": version[0].decode(errors="replace")}
            _log.log(level, "configuration not read", extra={**fields, "why": str(error)})
        else:
            self._failed.pop(version, None)

    def _conclude(self) -> None:
        models: dict[bytes, list[Configured]] = {}
        for version, configured in self._known.items():
            models.setdefault(version[0], []).append(configured)
        for version in {*self._failed, *self._wanted, *self._reading} - self._known.keys():
            models.setdefault(version[0], []).append(UNKNOWN)
        self._publish(resolve(models))
