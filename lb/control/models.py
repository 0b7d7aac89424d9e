"""Keeps the tables of models: asks every backend that may list its models what it has.

On a schedule; at once when a port changes its state, after calls that change servers, and when an
answer contradicts the table; and soon again while a model loads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from random import Random
from time import monotonic
from typing import Final, TypeVar

from lb.control.backend_registry import ENDED_AT_ONCE
from lb.control.configurations import ConfigurationReader
from lb.control.directory import BackendDirectory
from lb.control.facts import FactsKeeper
from lb.control.lists import ListReader
from lb.control.questions import NotOffered, Questions
from lb.control.record import LISTING_KINDS, BackendRecord, Setup
from lb.domain.backend import AppProtocol, Backend, BackendKind, BackendState
from lb.domain.errors import UpstreamError
from lb.domain.names import readable
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolSnapshot
from lb.health.models import ModelList, Version
from lb.net.tasks import TaskOwner
from lb.net.timeouts import fair_timeout
from lb.settings.passive import ModelTableSettings

_log = logging.getLogger(__name__)

_JITTER: Final = 0.1
_SOON_S: Final = 0.5
"""To the next look while a model loads, or the server as a whole is not ready."""
_GAP_S: Final = 0.02
"""Between two looks at one backend, however many reasons there are."""
_UNLISTED_S: Final = 60.0
"""To the next look at a server that does not list its models."""
_SETUP_S: Final = 30.0
"""To the next look at regions and settings, which others may have changed."""
_REFRESHED_S: Final = 10.0
_STALE_REFRESHES: Final = 3
_STALE_S: Final = 10.0
"""A list that could not be renewed for so long, and so many refreshes, counts as none."""
_SETTLED_S: Final = 1.0
"""How long a client's call that changed servers may wait for what is known of them."""

_SETUP: Final = ("SharedMemory", "TraceSetting", "LogSettings")
"""In the names of operations that change something beside models."""

_T = TypeVar("_T")


def _no_one(_record: BackendRecord) -> None:
    """Nobody wants to know who joins or leaves."""


def _no_versions(_record: BackendRecord, _versions: frozenset[Version]) -> None:
    """Nobody wants to know what becomes ready."""


class _Watched:
    """One backend whose models are looked after."""

    __slots__ = (
        "changed_models", "has_listed", "is_new", "last", "record", "setup_due",
        "silent_since", "task", "waiting", "woken",
    )  # fmt: skip

    def __init__(self, record: BackendRecord) -> None:
        self.record = record
        self.woken = asyncio.Event()
        self.last: tuple[AppProtocol, int] | None = None
        """The newest list as it came: its hash, since lists may be long."""
        self.is_new = True
        """It has not listed its models since it last closed all ports."""
        self.has_listed = False
        """It has listed its models before, whichever process that was."""
        self.silent_since: float | None = None
        """Since when it gives no list, while none is known; None: it does, or one is."""
        self.changed_models: set[bytes] = set()
        """Models of which a call may have changed the configuration."""
        self.setup_due = 0.0
        self.waiting: list[tuple[float, asyncio.Event]] = []

    task: asyncio.Task[None]
    """Looks after it."""


class ModelWatch:
    """Keeps what is known of all models. Implements `ControlNews`."""

    def __init__(
        self,
        directory: BackendDirectory,
        questions: Questions,
        rng: Random,
        options: ModelTableSettings | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._directory = directory
        self._questions = questions
        self._rng = rng
        self.options = options or ModelTableSettings()
        """The options in force."""
        self._clock = clock
        self._tasks = TaskOwner()
        self._lists = ListReader()
        self._facts = FactsKeeper(questions, self._tasks, directory.facts_changed, clock)
        self.configurations = ConfigurationReader(
            questions,
            directory.configurations,
            lambda record, version: self._facts.read(record, [version]),
            clock,
        )
        self._watched: dict[BackendRecord, _Watched] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._is_following = False
        """The next backends that have left have been put off."""
        self._retained: object = None
        """The sets of names and of versions that all backends together had lately."""
        self._is_settled = False
        """The first round is over: who lists models for the first time has joined."""
        self.joined: Callable[[BackendRecord], None] = _no_one
        """Told of a backend that came or came back, once its models are known."""
        self.on_ready: Callable[[BackendRecord, frozenset[Version]], None] = _no_versions
        """Told of what has become ready on a backend, before requests for it go there."""
        self.left: Callable[[BackendRecord], None] = _no_one
        """Told of a backend that is not in the pool any more."""

    def configure(self, options: ModelTableSettings) -> None:
        """Go by other options from now on."""
        self.options = options

    def start(self) -> None:
        """Begin to ask, and follow the pool from now on."""
        self._unsubscribe = self._directory.ref.subscribe(self._follow)
        self._follow(self._directory.ref.current)
        self._tasks.spawn(self.configurations.run(), name="models: compare configurations")

    async def first_round(self, timeout_s: float) -> None:
        """Return when everybody who answers has been asked, or that time has passed."""
        try:
            async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                await self._wait_for(self._watched.values())
                await self._facts.idle.wait()
        except TimeoutError:
            _log.warning("not every backend has said which models it has")
        self._is_settled = True

    async def aclose(self) -> None:
        """End everything."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        await self._tasks.aclose()
        self._watched.clear()

    # News

    def control_done(
        self, operation: Operation, model: bytes, backends: tuple[Backend, ...]
    ) -> None:
        """Look at servers that a call may have changed."""
        is_setup = any(part in operation.name for part in _SETUP)
        if not is_setup:
            # Those that are asked first must not be compared with how others were before.
            self.configurations.forget(model, backends)
        for watched in self._of(backends):
            if is_setup:
                watched.setup_due = 0.0
            elif watched.record.models.lists is not False:
                watched.changed_models.add(model)
            watched.woken.set()

    async def settled(self, backends: tuple[Backend, ...]) -> None:
        """Wait until what is known of `backends` is news from now on, for a second at most."""
        try:
            async with asyncio.timeout(_SETTLED_S):
                await self._wait_for(self._of(backends))
                await self._facts.idle.wait()
        except TimeoutError:
            _log.info("what a call has changed is not known yet")

    async def refreshed(self, records: Iterable[BackendRecord]) -> None:
        """Look at everything of some backends, and return when that is done."""
        watched = [self._watched[record] for record in records if record in self._watched]
        for each in watched:
            each.setup_due = 0.0
        await self._looked_at(watched)

    async def listed(self, record: BackendRecord) -> None:
        """Look at the models of a backend, and return when that is done."""
        if record in self._watched:
            await self._looked_at([self._watched[record]])

    def is_configured(self, model: bytes) -> bool:
        """Whether it is known how a model is configured."""
        return self._facts.is_known(model)

    async def configured(self, model: bytes) -> None:
        """Wait until it is known how a model is configured, for a second at most."""
        try:
            async with asyncio.timeout(_SETTLED_S):
                if not self.is_configured(model):
                    await self._facts.idle.wait()
        except TimeoutError:
            _log.info("configuration is not read yet", extra={"model": readable(model)})

    async def _looked_at(self, watched: Iterable[_Watched]) -> None:
        try:
            async with asyncio.timeout(_REFRESHED_S):
                await self._wait_for(watched)
        except TimeoutError:
            _log.info("some backends are slow to say what they have")

    def ensembles(self) -> dict[bytes, frozenset[bytes]]:
        """The models that each ensemble runs, as far as it is known."""
        return self._facts.ensembles()

    def refresh(self, record: BackendRecord) -> None:
        """Look at everything of one backend as soon as possible."""
        watched = self._watched.get(record)
        if watched is not None:
            watched.setup_due = 0.0
            watched.woken.set()

    def _of(self, backends: Iterable[Backend]) -> list[_Watched]:
        wanted = set(backends)
        return [w for record, w in self._watched.items() if record.backend in wanted]

    async def _wait_for(self, watched: Iterable[_Watched]) -> None:
        """Wait for a look at each of them that begins from now on."""
        now = self._clock()
        done = []
        for each in watched:
            event = asyncio.Event()
            each.waiting.append((now, event))
            each.woken.set()
            done.append(event)
        for event in done:
            await event.wait()

    # The loops

    def _follow(self, _snapshot: PoolSnapshot) -> None:
        records = {
            record for record in self._directory.records if record.member.spec.kind in LISTING_KINDS
        }
        if records == self._watched.keys():
            return
        gone = self._watched.keys() - records
        for record in islice(gone, ENDED_AT_ONCE):
            watched = self._watched.pop(record)
            self.configurations.leave(record)
            self.left(record)
            watched.task.cancel()
            for _, event in watched.waiting:
                event.set()
        if len(gone) > ENDED_AT_ONCE:
            self._follow_soon()
        for record in records - self._watched.keys():
            watched = self._watched[record] = _Watched(record)
            record.wake = watched.woken.set
            name = f"models: {record.backend.name}"
            watched.task = self._tasks.spawn(self._watch(watched), name=name)

    def _follow_soon(self) -> None:
        """Go on with backends that have left, in the next loop iteration."""
        if not self._is_following:
            self._is_following = True
            asyncio.get_running_loop().call_soon(self._follow_on)

    def _follow_on(self) -> None:
        self._is_following = False
        if self._unsubscribe is not None:
            self._follow(self._directory.ref.current)

    async def _watch(self, watched: _Watched) -> None:
        while True:
            watched.woken.clear()
            began, life = self._clock(), watched.record.models.times_forgotten
            try:
                await self._look(watched)
            except Exception:  # top frame: without its loop a table would stay as it is for ever
                _log.exception("asking for models failed", extra=_about(watched.record))
            if life == watched.record.models.times_forgotten:
                self._looked(watched, began)
            else:
                watched.woken.set()  # the process that was asked may be gone
            await asyncio.sleep(_GAP_S)
            await self._until_due(watched)

    def _looked(self, watched: _Watched, began: float) -> None:
        for since, event in watched.waiting:
            if since <= began:
                event.set()
        watched.waiting = [each for each in watched.waiting if not each[1].is_set()]

    async def _until_due(self, watched: _Watched) -> None:
        pause_s = self._pause_s(watched.record)
        try:
            async with asyncio.timeout(pause_s):
                await watched.woken.wait()
        except TimeoutError:
            return

    def _pause_s(self, record: BackendRecord) -> float | None:
        """Seconds to the next look; None: not before something happens."""
        if not record.answers:
            return None
        if record.models.lists is False:
            return _UNLISTED_S
        pause_s = self.options.refresh * (1 + _JITTER * (2 * self._rng.random() - 1))
        is_unread = record.models.lists is None
        if is_unread or record.models.is_changing or record.state is BackendState.PARTIAL:
            pause_s = min(_SOON_S, pause_s)
        return pause_s

    # One look

    async def _look(self, watched: _Watched) -> None:
        record = watched.record
        if not record.answers:
            watched.last = None
            return
        watched.is_new = watched.is_new or record.models.lists is None
        asked_at, life = self._clock(), record.models.times_forgotten
        try:
            index = await self._questions.index(record)
            came = (index.protocol, hash(index.body))
            listed = None
            if watched.last != came or record.models.lists is not True:
                listed = await self._lists.read(index)
            if life == record.models.times_forgotten:
                self._take_index(watched, listed, came, asked_at)
        except NotOffered as refused:
            self._take_none(record, str(refused))
        except ValueError as error:
            self._take_none(record, f"its list cannot be read: {error}")
        except UpstreamError as error:
            self._take_silence(watched, error.detail)
        if self._clock() >= watched.setup_due and record.member.spec.kind is BackendKind.TRITON:
            await self._look_at_setup(watched)

    def _take_index(
        self,
        watched: _Watched,
        listed: ModelList | None,
        came: tuple[AppProtocol, int],
        asked_at: float,
    ) -> None:
        """Take over a list; None: it is the one that came before."""
        record, models = watched.record, watched.record.models
        if not record.answers:
            return  # it has closed its ports meanwhile
        watched.has_listed, watched.silent_since = True, None
        before = (models.lists, models.ready)
        if listed is None:
            models.confirmed(asked_at)
        else:
            fresh = models.listed(listed, asked_at)
            self.on_ready(record, fresh)
            watched.last = came
            if models.lists is False:
                _log.warning("too many models to keep a list", extra=_about(record))
            self._facts.read(record, fresh)
        if watched.changed_models:
            changed, watched.changed_models = watched.changed_models, set()
            self._facts.read(record, [key for key in models.ready if key[0] in changed])
            self.configurations.read(record, anew=watched.is_new)
        self._facts.read_missing(record)
        if listed is not None or (models.lists, models.ready) != before:
            self._retain()
            self._directory.models_changed(record, self._clock())
            self.configurations.read(record, anew=watched.is_new)
        if watched.is_new:
            watched.is_new = False
            if self._is_settled:
                self.joined(record)

    def _retain(self) -> None:
        """Forget what nobody has any more. Most backends have the same sets, so that the sets of
        all rarely change."""
        names = frozenset(record.models.names for record in self._watched)
        ready = frozenset(record.models.ready for record in self._watched)
        if (names, ready) != self._retained:
            self._retained = (names, ready)
            self._facts.retain(frozenset[bytes]().union(*names), frozenset[Version]().union(*ready))

    def _take_none(self, record: BackendRecord, why: str) -> None:
        """It has no list for us, so it may have any model."""
        if record.models.lists is not False:
            _log.info("backend does not list its models", extra={**_about(record), "why": why})
            record.models.cannot_list()
            self._directory.models_changed(record, self._clock())

    def _take_silence(self, watched: _Watched, why: str) -> None:
        """It gave no answer: what it said before counts for a while. If that was forgotten, since
        its process has ended, it has as long to list its models again."""
        record, now = watched.record, self._clock()
        age_s = record.models.age_s(now)
        if age_s is None and watched.has_listed:
            watched.silent_since = watched.silent_since or now
            age_s = now - watched.silent_since
        limit_s = max(_STALE_S, _STALE_REFRESHES * self.options.refresh)
        if record.answers and (age_s is None or age_s > limit_s):
            self._take_none(record, why)

    async def _look_at_setup(self, watched: _Watched) -> None:
        """Ask for regions and settings; what is not offered counts as none."""
        record = watched.record
        watched.setup_due = self._clock() + _SETUP_S
        try:
            setup = await self._setup(record)
        except UpstreamError as error:
            _log.debug("setup not read", extra={**_about(record), "why": error.detail})
            return
        if record.answers and record.learn(setup):  # it may have closed its ports meanwhile
            self._directory.models_changed(record, self._clock())

    async def _setup(self, record: BackendRecord) -> Setup:
        ask = self._questions
        return Setup(
            regions=await _offered(ask.regions(record), ()),
            cuda=frozenset(r.name for r in await _offered(ask.cuda_regions(record), ())),
            trace=await _offered(ask.trace_settings(record), {}),
            log=await _offered(ask.log_settings(record), {}),
        )


async def _offered(question: Awaitable[_T], nothing: _T) -> _T:
    """The answer to a question, or what stands for it where the server does not have such a call.

    Raises:
        UpstreamError: there was no answer.
    """
    try:
        return await question
    except (NotOffered, ValueError):
        return nothing
    except UpstreamError as error:
        if error.outcome is Outcome.REFUSED:
            return nothing
        raise


def _about(record: BackendRecord) -> dict[str, str]:
    return {"backend": record.backend.name}
