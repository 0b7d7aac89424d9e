"""Reads how each backend configures each model, slowly and in the background, to compare them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord
from lb.domain.backend import Backend, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.names import readable
from lb.health.configurations import ConfigurationBook
from lb.health.models import Version
from lb.kserve.configuration import Configuration

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
"""Between two readings: with hundreds of backends there are very many, and none is urgent."""
_AGAIN_S: Final = 1800.0
"""When all of a backend is read again: others may have changed it without a trace in its list."""
_RETRY_S: Final = 60.0
"""When a backend that gave no answer is asked again."""

Changed = Callable[[BackendRecord, Version], None]


class ConfigurationReader:
    """Keeps the book of configurations up to date."""

    def __init__(
        self,
        questions: Questions,
        book: ConfigurationBook,
        changed: Changed,
        clock: Callable[[], float],
    ) -> None:
        """Read into `book`.

        Args:
            questions: to the backends.
            book: where digests are kept.
            changed: told of versions that turn out to be configured otherwise than before.
            clock: monotonic seconds.
        """
        self._questions = questions
        self._book = book
        self._changed = changed
        self._clock = clock
        self._due: dict[BackendRecord, float] = {}
        """When each backend is gone through the next time."""
        self._unread: set[BackendRecord] = set()
        """Those of which something may not have been read yet."""
        self._left: dict[BackendRecord, dict[Version, bool]] = {}
        """What is to be read; the newest goes first. True: from all who have it and were not asked
        yet, so that there is something to compare with."""
        self._seen: dict[BackendRecord, frozenset[Version]] = {}
        """What each backend had ready when it was last looked at for what is unknown."""
        self._woken = asyncio.Event()
        self._changes = 0
        """How often something was forgotten: what was asked for before is no news then."""

    def read(self, record: BackendRecord, *, anew: bool = False) -> None:
        """Read soon what is not known of a backend; forget what it does not have any more.

        Args:
            record: of the backend.
            anew: nothing counts any more that was known of it.
        """
        if anew:
            self._seen.pop(record, None)
        if record.member.spec.kind is BackendKind.TRITON:
            self._unread.add(record)
            self._due.setdefault(record, self._clock() + _AGAIN_S)
            self._woken.set()

    def forget(self, model: bytes, backends: Collection[Backend]) -> None:
        """Some backends may configure a model otherwise now; `read` has to follow."""
        self._changes += 1
        self._book.forget_model(model, backends)
        changed = set(backends)
        for record in [each for each in self._seen if each.backend in changed]:
            del self._seen[record]

    def leave(self, record: BackendRecord) -> None:
        """A backend is gone."""
        self._book.forget(record.backend, lambda _: True)
        self._due.pop(record, None)
        self._left.pop(record, None)
        self._seen.pop(record, None)
        self._unread.discard(record)

    async def run(self) -> None:
        """Read for ever."""
        while True:
            record, version = await self._next()
            try:
                await self.ask(record, version)
            except (NotOffered, ValueError) as error:
                fields = {"backend": record.backend.name, "model": readable(version[0])}
                _log.debug("configuration not compared", extra={**fields, "why": str(error)})
            except UpstreamError:
                self._left.pop(record, None)
                if record in self._due:
                    self._due[record] = self._clock() + _RETRY_S
            await asyncio.sleep(_PAUSE_S)

    async def ask(self, record: BackendRecord, version: Version) -> Configuration:
        """Read one configuration, and compare it.

        Raises:
            NotOffered: there is none for us.
            UpstreamError: there was no answer.
            ValueError: it cannot be read.
        """
        changes = self._changes
        found = await self._questions.configuration(record, version)
        if changes != self._changes:
            self._seen.pop(record, None)
            self.read(record)
            return found
        if version not in record.models.ready or record not in self._due:
            return found  # it has gone meanwhile, or nobody uses it yet
        before = self._book.digest(record.backend, version)
        if self._book.note(record.backend, version, found.digest):
            fields = {"backend": record.backend.name, "model": readable(version[0])}
            _log.warning("backends do not configure a model alike", extra=fields)
        if before is not None and before != found.digest:
            self._changed(record, version)
        return found

    async def _next(self) -> tuple[BackendRecord, Version]:
        """What to read next, when there is something."""
        while True:
            self._woken.clear()
            while self._unread:
                self._add_unknown(self._unread.pop())
                await asyncio.sleep(0)  # that took as long as it has models
            while self._left:
                record, left = next(reversed(self._left.items()))
                if not left:
                    del self._left[record]
                    continue
                version, is_first = left.popitem()
                if version in record.models.ready and self._note_others(record, version, is_first):
                    return record, version
            await self._until_due()

    def _add_unknown(self, record: BackendRecord) -> None:
        book, backend, ready = self._book, record.backend, record.models.ready
        seen = self._seen.get(record)
        if seen is None:
            book.forget(backend, lambda version: version not in ready)
            fresh = ready
        else:
            for version in seen - ready:
                book.drop(backend, version)
            fresh = ready - seen
        self._seen[record] = ready
        if not book.is_full:
            left = self._left.setdefault(record, {})
            left.update((each, True) for each in fresh if book.digest(backend, each) is None)

    def _note_others(self, record: BackendRecord, version: Version, is_first: bool) -> bool:
        """Have the others that have it asked, too, if this is the first one. Returns whether there
        are any."""
        others = [o for o in self._due if o is not record and version in o.models.ready]
        if is_first:
            for other in others:
                if self._book.digest(other.backend, version) is None:
                    self._left.setdefault(other, {}).setdefault(version, False)
        return bool(others)

    async def _until_due(self) -> None:
        """Wait for news, or until a backend is to be gone through."""
        now = self._clock()
        soonest = min(self._due, key=self._due.__getitem__, default=None)
        if soonest is not None and self._due[soonest] <= now:
            self._due[soonest] = now + _AGAIN_S
            self._left[soonest] = dict.fromkeys(soonest.models.ready, False)
            return
        try:
            async with asyncio.timeout(self._due[soonest] - now if soonest is not None else None):
                await self._woken.wait()
        except TimeoutError:
            return
