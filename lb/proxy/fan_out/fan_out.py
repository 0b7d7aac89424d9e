"""Asks the backends that a question concerns, and makes one answer of theirs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.control import ControlNews, Reach, Roster
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.kserve.conversion import subject
from lb.net.ask.backend_client import BackendClient
from lb.net.tasks import TaskOwner
from lb.proxy.fan_out import replies
from lb.proxy.fan_out.account import AnswerAccount
from lb.proxy.fan_out.calls import Calls, gave_up
from lb.proxy.fan_out.collections import Collections
from lb.proxy.fan_out.options import FanOutOptions
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.fan_out.result import Result
from lb.proxy.fan_out.targets import concerned
from lb.proxy.fan_out.views import Views
from lb.telemetry.counts import OwnCalls
from lb.wire.memory_budget import MemoryBudget, SharedBytes
from lb.wire.protobuf import ProtobufError, fields

_log = logging.getLogger(__name__)

_BEGUN_AT_ONCE: Final = 8
_HEAD_START_S: Final = 0.005
"""There may be hundreds to be called, with long answers: calls begin so many at a time, which is a
millisecond or two of work, and the next ones when these are answered or after this time, so that
neither beginnings nor answers come all in one iteration of the loop."""
_LOOK_S: Final = 1.0
"""How often those that are waited for are held against the roster."""
_REPOSITORY: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
_SETTINGS: Final = frozenset({"TraceSetting", "LogSettings"})
_ONE_IS_ENOUGH: Final = frozenset({"CudaSharedMemoryRegister"})
"""CUDA memory belongs to one GPU, which not all can open."""
_SETTINGS_FIELD: Final = 1
_TRIES: Final = 2
"""Tries of a backend that cannot be reached while the others carry out what they are told."""


@dataclass(slots=True)
class _Turn:
    """Whose turn it is to change one thing."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class BackendFanOut:
    """Implements `lb.proxy.fan_out.question.FanOut`."""

    def __init__(
        self,
        roster: Roster,
        backend_client: BackendClient,
        tasks: TaskOwner,
        memory_budget: MemoryBudget,
        options: FanOutOptions,
        *,
        clock: Callable[[], float],
        own_calls: OwnCalls | None = None,
    ) -> None:
        """Take what it works with.

        Args:
            roster: whom it can reach.
            backend_client: how.
            tasks: owner of the tasks that wait for backends.
            memory_budget: account of the answers' bytes.
            options: what is configured.
            clock: monotonic.
            own_calls: counts them.
        """
        self.news: ControlNews | None = None
        """Is told of what changed servers."""
        self.options = options
        self.own_calls = own_calls or OwnCalls()
        self._roster = roster
        self._calls = Calls(backend_client, clock)
        self._clock = clock
        self._tasks = tasks
        self._memory_budget = memory_budget
        self._views = Views()
        self._collections = Collections(tasks, self._collect)
        self._changes = 0
        """Calls under way that change something. They are counted apart from views: a server that
        loads for minutes must not keep clients from looking, nor they it from being told."""
        self._turns: dict[tuple[str, bytes], _Turn] = {}

    def configure(self, options: FanOutOptions) -> None:
        """Go by other options from now on."""
        self.options = options

    @property
    def is_changing(self) -> bool:
        """Whether some call is under way that should reach all backends, or none."""
        return self._changes > 0

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        """See `FanOut`."""
        account = AnswerAccount(self._memory_budget)
        try:
            # Here and not with the client, who may leave: the body stays until all are done.
            if not account.keep(len(question.body)):
                return _short_of_memory(question, ())
            if changes_something(question):
                return await self._change(question, account)
            return await self._collections.ask(question, self.options.concurrent)
        except Exception:
            # A client waits: this is the top frame of all that is done for it here.
            _log.exception("a call to all backends failed")
            return replies.refusal(question, Reason.INTERNAL, "internal error")
        finally:
            account.close()

    # What only reads

    async def _collect(self, question: FanOutRequest) -> FanOutReply:
        """Make a view, for however many clients."""
        account = AnswerAccount(self._memory_budget)
        try:
            targets = [
                reach
                for reach in concerned(self._roster(), question.operation)
                if reach.answers(question.protocol)
            ]
            if not targets:
                return _nobody(question)
            timeout_s = self.options.read_timeout_s
            results = await self._ask_all(question, targets, timeout_s, account)
            if not account.is_open:
                return _short_of_memory(question, targets)
            reply = await self._views.combine(question, _without_loops(results))
            return replace(reply, shared=SharedBytes(self._memory_budget, len(reply.body)))
        finally:
            account.close()

    # What changes servers

    async def _change(self, question: FanOutRequest, account: AnswerAccount) -> FanOutReply:
        if self._changes >= self.options.concurrent:
            detail = "too many calls that concern all backends are under way"
            return replies.refusal(question, Reason.BACKENDS_FULL, detail)
        self._changes += 1
        try:
            return await self._control(question, account)
        finally:
            self._changes -= 1

    async def _control(self, question: FanOutRequest, account: AnswerAccount) -> FanOutReply:
        message = question.body if question.protocol is AppProtocol.GRPC else None
        about = subject(question.operation.name, question.target, message)
        async with self._turn(question, about):
            if question.departure.has_happened:
                return replies.refusal(question, Reason.CLIENT_GONE, "nobody waits for it any more")
            began = self._clock()
            results, rest = await self._tell_all(question, account)
            reached = [result for result in results if not result.is_unreached]
            roster = concerned(self._roster(), question.operation)
            self._log_control(question, about, roster, results, began)
            if self.news is not None:
                backends = tuple(result.backend for result in reached)
                model = question.model or (about if _is_about_model(question) else b"")
                self.news.control_done(question.operation, model, backends)
                await self.news.settled(backends)
        if not account.is_open:
            return _short_of_memory(question, reached)
        if not results:
            return _nobody(question)
        return _verdict(question, _without_loops(reached or results), rest)

    async def _tell_all(
        self, question: FanOutRequest, account: AnswerAccount
    ) -> tuple[list[Result], Sequence[Reach]]:
        """Tell everybody, also who comes up meanwhile, as long as it succeeds somewhere.

        Nobody else would tell them: a backend that joins is given what the others have ready, and
        what they are still told to load is not.
        """
        results: dict[Backend, Result] = {}
        tries: Counter[Backend] = Counter()

        def is_due(backend: Backend) -> bool:
            result = results.get(backend)
            return result is None or (result.is_unreached and tries[backend] < _TRIES)

        while True:
            roster = concerned(self._roster(), question.operation)
            targets = [each for each in roster if each.is_reachable and is_due(each.backend)]
            tries.update(each.backend for each in targets)
            told, rest = await self._tell(question, targets, account)
            results.update((each.backend, each) for each in told)
            if rest or not any(each.is_ok for each in told):
                return list(results.values()), rest

    async def _tell(
        self, question: FanOutRequest, targets: Sequence[Reach], account: AnswerAccount
    ) -> tuple[list[Result], Sequence[Reach]]:
        """Ask all at once, or one after the other up to the first that fails."""
        deadline_s = self.options.deadline_s
        if not (self.options.rolling and question.operation.name in _REPOSITORY):
            return await self._ask_all(question, targets, deadline_s, account), ()
        results: list[Result] = []
        for index, reach in enumerate(targets):
            results += await self._ask_all(question, [reach], deadline_s, account)
            last = results[-1]
            if not (last.is_ok or last.is_unreached or last.is_loop):
                return results, targets[index + 1 :]
        return results, ()

    @asynccontextmanager
    async def _turn(self, question: FanOutRequest, about: bytes) -> AsyncIterator[None]:
        """Keep calls that change the same thing apart: all backends see them in one order."""
        name = question.operation.name
        # Regions and settings are named by several calls, one of them about all of them.
        key = ("repository", about) if name in _REPOSITORY else (name.partition("Shared")[0], b"")
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]

    def _log_control(
        self,
        question: FanOutRequest,
        about: bytes,
        roster: Sequence[Reach],
        results: Sequence[Result],
        began: float,
    ) -> None:
        asked = {result.backend for result in results if not result.is_unreached}
        failed = [
            f"{result.backend.name}: {result.detail}"
            for result in results
            if not (result.is_ok or result.is_unreached or result.is_loop)
        ]
        down = [reach.backend.name for reach in roster if reach.backend not in asked]
        extra: dict[str, object] = {
            "operation": question.operation.name,
            "subject": about.decode(errors="replace"),
            "backends": ", ".join(sorted(backend.name for backend in asked)),
            "took_ms": round((self._clock() - began) * 1000),
        }
        if down:
            extra["not_asked"] = ", ".join(down)
        if failed:
            extra["failed"] = "; ".join(failed)[:2048]
        _log.log(logging.WARNING if failed else logging.INFO, "control call", extra=extra)

    # Asking

    async def _ask_all(
        self,
        question: FanOutRequest,
        targets: Sequence[Reach],
        timeout_s: float,
        account: AnswerAccount,
    ) -> list[Result]:
        """Ask all at once; results in the order of `targets`."""
        # By backend and not by name: a successor may take the name over while a call runs.
        results: dict[Backend, Result] = {}

        async def put(reach: Reach) -> None:
            result = await self._calls.put(question, reach, timeout_s, account.keep)
            results[reach.backend] = result

        waiting: dict[asyncio.Task[None], Reach] = {}
        try:
            for begin in range(0, len(targets), _BEGUN_AT_ONCE):
                if waiting:
                    await asyncio.wait(tuple(waiting)[-_BEGUN_AT_ONCE:], timeout=_HEAD_START_S)
                for reach in targets[begin : begin + _BEGUN_AT_ONCE]:
                    waiting[self._tasks.spawn(put(reach), name=f"ask:{reach.backend.name}")] = reach
            while waiting:
                done, _ = await asyncio.wait(
                    waiting, timeout=_LOOK_S, return_when=asyncio.ALL_COMPLETED
                )
                for task in done:
                    del waiting[task]
                self._give_up_on_lost(waiting)
        finally:
            for task in waiting:
                task.cancel()
        found = [results.get(reach.backend) or gave_up(reach, question) for reach in targets]
        for result in found:
            self.own_calls.count(question.operation.name, result.backend, result.label)
        return found

    def _give_up_on_lost(self, waiting: dict[asyncio.Task[None], Reach]) -> None:
        """Wait no longer for backends that have gone down meanwhile."""
        if not waiting:
            return
        alive = {reach.backend for reach in self._roster() if reach.is_reachable}
        for task, reach in waiting.items():
            if reach.backend not in alive:
                task.cancel()


def changes_something(question: FanOutRequest) -> bool:
    """Whether servers are others afterwards. Two gRPC calls read when they name no settings."""
    operation = question.operation
    if operation.kind is not OperationKind.CONTROL:
        return False
    if question.protocol is AppProtocol.HTTP or operation.name not in _SETTINGS:
        return True
    try:
        return any(number == _SETTINGS_FIELD for number, _, _, _ in fields(question.body))
    except ProtobufError:
        return True


def _without_loops(results: Sequence[Result]) -> Sequence[Result]:
    """What those backends answered that are no balancers which the question has passed before; all
    results where there is no other."""
    return [result for result in results if not result.is_loop] or results


def _is_about_model(question: FanOutRequest) -> bool:
    return question.operation.name in _REPOSITORY or question.operation.name == "TraceSetting"


def _verdict(
    question: FanOutRequest, results: Sequence[Result], rest: Sequence[Reach]
) -> FanOutReply:
    if any(result.is_ok for result in results):
        # Settings of a model are changed where it is.
        results = [result for result in results if not result.lacks_model]
    judge = any if question.operation.name in _ONE_IS_ENOUGH else all
    if not judge(result.is_ok for result in results):
        return replies.failure(question, results, rest)
    try:
        return replies.success(question, results)
    except ValueError as error:
        return replies.refusal(question, Reason.UPSTREAM_PROTOCOL, str(error))


def _nobody(question: FanOutRequest) -> FanOutReply:
    detail = f"no backend that can be asked over {question.protocol.label} is reachable"
    return replies.refusal(question, Reason.NO_BACKEND, detail)


def _short_of_memory(question: FanOutRequest, asked: Sequence[Reach | Result]) -> FanOutReply:
    detail = "too little memory for the request or for the answers of the backends"
    return replies.refusal(question, Reason.MEMORY, detail, asked)
