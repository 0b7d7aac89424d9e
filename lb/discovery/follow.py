"""Follows all sources: hands on every set that one yields, and keeps account of those that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Final

from lb.discovery.source import Entries, Source, SourceError
from lb.net.tasks import TaskOwner
from lb.net.timeouts import fair_timeout
from lb.telemetry.collector import SourceStatus

_log = logging.getLogger(__name__)

_AFTER_CRASH_S: Final = 5.0
_MOST: Final = 1000
NEW_AT_ONCE: Final = 25
"""New backends that join in one iteration of the event loop: beside 900 others that takes about ten
milliseconds."""
_OTHERS_TIME: Final = 4.0
"""After those the event loop has this multiple of their time for everything else, so that a source
whose addresses are new at each look takes a fifth of it."""

Found = Callable[[str, Entries, bool], None]
"""The name of the source, a set, and whether the next step of the same set follows."""


class _Followed:
    """One source and its account."""

    __slots__ = (
        "answered",
        "backends",
        "error",
        "failures",
        "found_at",
        "source",
        "task",
        "told",
        "updates",
    )

    def __init__(self, source: Source, told: Entries = ()) -> None:
        self.source = source
        self.task: asyncio.Task[None] | None = None
        self.answered = asyncio.Event()
        """It has yielded a set, or has failed to."""
        self.told = told
        """The set that was told last, perhaps by the source before this one."""
        self.backends = 0
        self.updates = 0
        self.failures = 0
        self.found_at: float | None = None
        self.error = ""


class Followers:
    """Runs the sources that are configured."""

    def __init__(self, found: Found, *, clock: Callable[[], float] = monotonic) -> None:
        """Tell `found` every set. One with very many new backends is told in steps."""
        self.most = _MOST
        """Backends of a set that matter; only so many are told in steps."""
        self._found = found
        self._clock = clock
        self._tasks = TaskOwner()
        self._followed: dict[str, _Followed] = {}

    def use(self, sources: Sequence[Source]) -> None:
        """Follow these and no others; those that are the same as before are not disturbed. Where
        another one has the same name, what it finds is compared with what that one has found."""
        before, self._followed = self._followed, {}
        for source in sources:
            known = before.get(source.name)
            if known is not None and known.source.config == source.config:
                self._followed[source.name] = before.pop(source.name)
            else:
                told = () if known is None else known.told
                self._followed[source.name] = _Followed(source, told)
        for left in before.values():
            if left.task is not None:
                left.task.cancel()
            left.answered.set()
        for name, each in self._followed.items():
            if each.task is None:
                each.task = self._tasks.spawn(self._follow(each), name=f"source: {name}")

    async def first_round(self, timeout_s: float) -> None:
        """Return when every source has yielded a set or has failed to, or that time has passed."""
        waiting = tuple(self._followed.values())
        try:
            async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                for each in waiting:
                    await each.answered.wait()
        except TimeoutError:
            silent = [each.source.name for each in waiting if not each.answered.is_set()]
            _log.warning("not every source has answered", extra={"sources": ", ".join(silent)})

    async def aclose(self) -> None:
        """End everything."""
        await self._tasks.aclose()
        self._followed.clear()

    def statuses(self) -> Iterator[SourceStatus]:
        """How all do, in their order."""
        now = self._clock()
        for name, each in self._followed.items():
            yield SourceStatus(
                name=name,
                backends=each.backends,
                updates=each.updates,
                failures=each.failures,
                age_s=None if each.found_at is None else now - each.found_at,
                error=each.error,
            )

    async def _follow(self, followed: _Followed) -> None:
        task = asyncio.current_task()
        # A source may lose the cancellation: until Python 3.12 `asyncio.wait_for` does, which the
        # library for DNS uses, if what it waits for is there at the same moment.
        while task is None or not task.cancelling():
            try:
                entries = await followed.source.next()
            except SourceError as error:
                self._failed(followed, str(error))
            except Exception:  # top frame: without its loop a source would say nothing any more
                _log.exception("source crashed", extra={"source": followed.source.name})
                self._failed(followed, "internal error")
                await asyncio.sleep(_AFTER_CRASH_S)
            else:
                await self._yielded(followed, entries)

    async def _yielded(self, followed: _Followed, entries: Entries) -> None:
        fields = {"source": followed.source.name, "backends": len(entries)}
        if followed.error:
            _log.info("source says again which backends there are", extra=fields)
        elif followed.backends != len(entries) or followed.found_at is None:
            _log.info("source has found backends", extra=fields)
        is_first = followed.found_at is None
        followed.error = ""
        followed.backends = len(entries)
        followed.updates += 1
        followed.found_at = self._clock()
        for some in _in_steps(followed.told, entries, self.most):
            began = self._clock()
            more_follow = some is not entries
            followed.told = some
            self._found(followed.source.name, some, more_follow)
            if more_follow:
                took_s = self._clock() - began
                await asyncio.sleep(0.0 if is_first else _OTHERS_TIME * took_s)
        followed.answered.set()

    def _failed(self, followed: _Followed, why: str) -> None:
        followed.failures += 1
        if followed.error != why:
            followed.error = why
            fields = {"source": followed.source.name, "error": why, "kept": followed.backends}
            _log.warning("source does not say which backends there are", extra=fields)
        followed.answered.set()


def _in_steps(before: Entries, now: Entries, most: int) -> Iterator[Entries]:
    """Sets between two, each with a few more new backends than the one before; the last is `now`.

    Args:
        before: the last set.
        now: the next one.
        most: new backends that come in steps.
    """
    known = {each.known_as for each in before}
    new = [at for at, each in enumerate(now) if each.known_as not in known]
    for count in range(NEW_AT_ONCE, min(len(new), most), NEW_AT_ONCE):
        later = set(new[count:])
        yield tuple([each for at, each in enumerate(now) if at not in later])
    yield now
