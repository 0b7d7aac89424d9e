"""Gives a backend that joins or comes back what all others have.

What a backend should have is what the others have, not what this process remembers: so several
balancers before the same backends want the same. Each acts only when a backend joins, and
everything that it does can be done twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import NotOffered, Questions, Reply
from lb.control.record import BackendRecord
from lb.domain.backend import AdminState, AppProtocol, Backend, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelState
from lb.domain.names import readable
from lb.health.models import Version
from lb.kserve.configuration import Configuration
from lb.kserve.messages import SYSTEM_SHARED_MEMORY_REGISTER
from lb.kserve.operations import grpc_operation
from lb.kserve.repository import Region
from lb.kserve.server_settings import Settings, to_copy
from lb.net.tasks import TaskOwner
from lb.proxy.fan_out.targets import concerned
from lb.settings.passive import ModelTableSettings

_log = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 600.0
"""For loading one model."""
_PAUSES_S: Final = (0.0, 1.0, 5.0, 30.0)
"""Before each time that it is tried, as long as some call gets no answer: a server that has just
started may be slow."""
_ALREADY: Final = "already in manager"
"""In Triton's refusal to register a region that it has."""
_REGISTER: Final = grpc_operation(SYSTEM_SHARED_MEMORY_REGISTER.path.encode())
_PRESENT: Final = (ModelState.READY, ModelState.LOADING)


class Kind(StrEnum):
    """What is restored."""

    MODEL = "model"
    REGION = "region"
    CONFIGURATION = "configuration"
    """Of a model that was restored."""
    TRACE = "trace"
    LOG = "log"


class Result(StrEnum):
    """What became of it."""

    RESTORED = "restored"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a backend does not have and all others do."""

    models: tuple[bytes, ...] = ()
    regions: tuple[Region, ...] = ()
    trace: Settings = field(default_factory=dict)
    log: Settings = field(default_factory=dict)


def missing(
    joined: BackendRecord, others: Sequence[BackendRecord], sharing: frozenset[Backend]
) -> Missing:
    """Compare a backend with all others that are settled.

    Args:
        joined: the one.
        others: empty is nothing to compare with.
        sharing: those that share memory with our clients.
    """
    if not others:
        return Missing()
    return Missing(
        models=_missing_models(joined, others),
        regions=_missing_regions(joined, [each for each in others if each.backend in sharing])
        if joined.backend in sharing
        else (),
        trace=to_copy(joined.setup.trace, [o.setup.trace for o in others if o.setup.trace]),
        log=to_copy(joined.setup.log, [o.setup.log for o in others if o.setup.log]),
    )


def _missing_models(joined: BackendRecord, others: Sequence[BackendRecord]) -> tuple[bytes, ...]:
    """Models that all others have ready. What is not in its repository it could not load."""
    common = set(joined.models.names)
    # Most backends share one set, which is looked at once.
    for ready in {id(other.models.ready): other.models.ready for other in others}.values():
        common &= {name for name, _ in ready}
    present = {each.name for each in joined.models.entries if each.state in _PRESENT}
    return tuple(sorted(common - present))


def _missing_regions(joined: BackendRecord, others: Sequence[BackendRecord]) -> tuple[Region, ...]:
    common = set(others[0].setup.regions) if others else set()
    for other in others:
        common &= set(other.setup.regions)
    known = {region.name for region in joined.setup.regions}
    return tuple(
        sorted((each for each in common if each.name not in known), key=lambda each: each.name)
    )


def _is_loading(record: BackendRecord, model: bytes) -> bool:
    return any(
        each.name == model and each.state is ModelState.LOADING for each in record.models.entries
    )


def _opens_http_later(record: BackendRecord) -> bool:
    """Whether only gRPC is up so far; configurations are read over HTTP."""
    has_port = record.backend.ports[AppProtocol.HTTP] is not None
    return has_port and not record.is_open(AppProtocol.HTTP)


def _newest(record: BackendRecord, model: bytes) -> Version | None:
    """The highest version of a model that a backend says is ready; None: there is none."""
    numbers = [
        int(each.version)
        for each in record.models.entries
        if each.name == model and each.state is ModelState.READY and each.version.isdigit()
    ]
    return (model, b"%d" % max(numbers)) if numbers else None


class Restorer:
    """Brings backends that join in line with the others."""

    def __init__(
        self,
        directory: BackendDirectory,
        watch: ModelWatch,
        questions: Questions,
    ) -> None:
        self.options = ModelTableSettings()
        """The options in force."""
        self.restores_models = True
        """Whether models are restored; not where they are loaded on demand."""
        self._directory = directory
        self._watch = watch
        self._questions = questions
        self._tasks = TaskOwner()
        self._joining: dict[BackendRecord, asyncio.Task[None]] = {}
        """Not settled: nobody is compared with them. And who brings them in line."""
        self._round = asyncio.Lock()
        """Held while all backends are read."""
        self._begun = 0
        """Rounds that have begun, numbered from 1."""
        self._ended = 0
        """Number of the last round that has ended, not counting those that were cancelled."""
        self._sharing: frozenset[Backend] = frozenset()
        """Backends that shared memory with our clients at the last round."""
        self.counts: dict[tuple[str, str], int] = {}
        """What was done since the start, by kind and result."""

    def configure(self, options: ModelTableSettings) -> None:
        """Go by other options from now on: for backends that join."""
        self.options = options

    async def aclose(self) -> None:
        """Leave what is under way."""
        await self._tasks.aclose()

    def joined(self, record: BackendRecord) -> None:
        """A backend has come or come back; see `ModelWatch.joined`."""
        if not self.options.restore or record.member.spec.kind is not BackendKind.TRITON:
            return
        before = self._joining.get(record)
        if before is not None:
            before.cancel()  # it speaks with a process that is gone
        name = f"restore {record.backend.name}"
        self._joining[record] = self._tasks.spawn(self._restore(record), name=name)

    def left(self, record: BackendRecord) -> None:
        """A backend is gone: there is nothing to be restored."""
        task = self._joining.pop(record, None)
        if task is not None:
            task.cancel()

    async def _restore(self, record: BackendRecord) -> None:
        unchecked: set[bytes] = set()
        try:
            for pause_s in _PAUSES_S:
                await asyncio.sleep(pause_s)
                if not record.answers or await self._bring_in_line(record, unchecked):
                    return
            fields = {"backend": record.backend.name}
            _log.warning("backend could not be brought in line with the others", extra=fields)
        finally:
            if self._joining.get(record) is asyncio.current_task():
                del self._joining[record]
                self._withhold(record, frozenset())
            self._watch.refresh(record)

    async def _bring_in_line(self, record: BackendRecord, unchecked: set[bytes]) -> bool:
        """Try once. Returns whether all calls were answered, whatever the answers were.

        Args:
            record: who has joined.
            unchecked: models that were restored, and not compared with those of the others yet;
                kept from one time to the next.
        """
        others = self._others()
        if not others:
            return True
        await self._all_refreshed()
        lacking = missing(record, self._others(), self._sharing)
        standby = record.member.standby
        if not self.restores_models or (standby is not None and standby.load):
            lacking = replace(lacking, models=())
        is_done = await self._restore_settings(record, lacking)
        for region in lacking.regions:
            asked = self._questions.register(record, region)
            reply = await self._told(record, Kind.REGION, region.name, asked, fine=_ALREADY)
            is_done &= reply is not None
        for model in sorted(unchecked.difference(lacking.models)):
            await self._check(record, model, unchecked)
        unchecked.update(lacking.models)
        is_done &= await self._restore_models(record, lacking.models, unchecked)
        return is_done and not unchecked

    async def _all_refreshed(self) -> None:
        """Read everything of all backends, together with whoever else wants that now.

        Hundreds of backends may come back at the same time. Each needs a round that begins from
        now on; there is one round at a time, and those that wait for it go on one by one.
        """
        before = self._begun
        async with self._round:
            if self._ended > before:
                return
            self._begun += 1
            await self._watch.refreshed(self._directory.records)
            reached = concerned(self._directory.roster(), _REGISTER)
            self._sharing = frozenset(reach.backend for reach in reached)
            self._ended = self._begun

    def _others(self) -> list[BackendRecord]:
        return [each for each in self._directory.records if self._is_settled(each)]

    def _is_settled(self, record: BackendRecord) -> bool:
        return (
            record.member.spec.kind is BackendKind.TRITON
            and record.admin is AdminState.ENABLED
            and record.answers
            and record.models.lists is True
            and record not in self._joining
        )

    async def _restore_settings(self, record: BackendRecord, lacking: Missing) -> bool:
        replies: list[Reply | None] = []
        if lacking.trace:
            asked = self._questions.set_trace(record, lacking.trace)
            replies.append(await self._told(record, Kind.TRACE, ", ".join(lacking.trace), asked))
        if lacking.log:
            asked = self._questions.set_log(record, lacking.log)
            replies.append(await self._told(record, Kind.LOG, ", ".join(lacking.log), asked))
        return None not in replies

    async def _restore_models(
        self, record: BackendRecord, models: Sequence[bytes], unchecked: set[bytes]
    ) -> bool:
        """Load one after the other: each serves as soon as it is there, and like the others."""
        is_done = True
        for at, model in enumerate(models):
            self._withhold(record, frozenset(unchecked))
            # Another balancer, or an ensemble that it belongs to, may have loaded it; or it was
            # unloaded on others while those before it were loaded.
            if model in _missing_models(record, self._others()):
                asked = self._questions.load(record, model, LOAD_TIMEOUT_S)
                reply = await self._told(record, Kind.MODEL, readable(model), asked)
                if reply is None:
                    is_done = False
                    continue
                if reply.refuses_control:
                    unchecked.difference_update(models[at:])
                    break  # it loads what it finds by itself
                await self._watch.refreshed([record])
            await self._check(record, model, unchecked)
        self._withhold(record, frozenset(unchecked))
        return is_done

    def _withhold(self, record: BackendRecord, models: frozenset[bytes]) -> None:
        """Let a backend get no requests for these models, even if it has them ready."""
        if record.models.withhold(models):
            self._directory.models_changed(record, monotonic())
            self._watch.configurations.read(record)

    async def _check(self, record: BackendRecord, model: bytes, unchecked: set[bytes]) -> None:
        """See that a model that was restored runs as on the others."""
        if _is_loading(record, model) or _opens_http_later(record):
            return  # ask again later; what loads it then is another balancer
        try:
            await self._configure(record, model)
        except UpstreamError as error:
            self._count(record, Kind.CONFIGURATION, readable(model), error.detail)
            return
        except (NotOffered, ValueError) as error:
            fields = {
                "backend": record.backend.name,
                "model": readable(model),
                "why": str(error),
            }
            _log.info("configuration of a restored model not compared", extra=fields)
        unchecked.discard(model)

    async def _configure(self, record: BackendRecord, model: bytes) -> None:
        """Load a model again the way that the others run it, where it is not so already.

        Raises:
            NotOffered, UpstreamError, ValueError: a configuration could not be read, or there was
                no answer.
        """
        mine = _newest(record, model)
        others = {each: newest for each in self._others() if (newest := _newest(each, model))}
        if mine is None or not others:
            return  # it could not be loaded, which is counted, or is unloaded everywhere
        found = await self._questions.configuration(record, mine)
        wanted = await self._agreed(others)
        if wanted is None:
            why = "the others do not agree on a configuration"
        elif wanted.digest == found.digest:
            return
        else:
            why = await self._load_as(record, model, wanted)
        self._count(record, Kind.CONFIGURATION, readable(model), why)

    async def _load_as(self, record: BackendRecord, model: bytes, wanted: Configuration) -> str:
        """Load a model with a configuration. Returns why it does not have it; empty when it has."""
        reply = await self._questions.load(record, model, LOAD_TIMEOUT_S, wanted.text)
        self._watch.configurations.forget(model, [record.backend])
        if not reply.is_ok:
            return reply.detail or f"status {reply.status}"
        await self._watch.refreshed([record])
        now = _newest(record, model)
        if now is None:
            return "it is not ready any more"
        found = await self._questions.configuration(record, now)
        return "" if found.digest == wanted.digest else "it is configured otherwise all the same"

    async def _agreed(self, newest: Mapping[BackendRecord, Version]) -> Configuration | None:
        """The configuration that others have of their newest versions; None: they differ.

        Raises:
            NotOffered, UpstreamError, ValueError: one could not be read.
        """
        agreed: Configuration | None = None
        for other, version in newest.items():
            if agreed is None:
                agreed = await self._watch.configurations.ask(other, version)
                continue
            digest = self._directory.configurations.digest(other.backend, version)
            if digest != agreed.digest:  # not known, or of before a load through another balancer
                digest = (await self._watch.configurations.ask(other, version)).digest
            if digest != agreed.digest:
                return None
        return agreed

    async def _told(
        self,
        record: BackendRecord,
        kind: Kind,
        what: str,
        asked: Awaitable[Reply],
        *,
        fine: str = "",
    ) -> Reply | None:
        """Count what came of one call. None when it got no answer: others may."""
        try:
            reply = await asked
        except UpstreamError as error:
            self._count(record, kind, what, error.detail)
            return None
        except ValueError as error:  # no message can hold it, now or later
            reply = Reply(AppProtocol.HTTP, 0, b"", str(error))
        if reply.refuses_control:
            return reply
        is_done = reply.is_ok or bool(fine and fine in reply.detail)
        why = "" if is_done else reply.detail or f"status {reply.status}"
        self._count(record, kind, what, why)
        return reply

    def _count(self, record: BackendRecord, kind: Kind, what: str, why: str) -> None:
        """Note what was restored, or why it was not."""
        key = (kind.value, (Result.FAILED if why else Result.RESTORED).value)
        self.counts[key] = self.counts.get(key, 0) + 1
        fields = {"backend": record.backend.name, "kind": kind.value, "what": what}
        if why:
            _log.warning("not restored what the others have", extra={**fields, "why": why})
        else:
            _log.info("restored what the other backends have", extra=fields)
