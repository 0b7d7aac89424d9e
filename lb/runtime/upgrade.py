"""Starting the next process with our listening sockets, and giving way to it once it is ready.

    old                                     new
    starts it, with the sockets, and   ->   binds nothing, reads its settings, probes the backends,
    what operators have said                those that operators added among them
                                       <-   "prepared"
    "operator", "sequences" ...        ->   knows what exists nowhere else
    "begin"                            ->   accepts
                                       <-   "ready"
    stops accepting, drains
    "handed_over"                      ->   is the service
    "sequences" as they come and go   <->   until the old one has ended
    "stop" when it is told to stop    <->   until the old one has ended
    "reload" when it is told to        ->   reloads

The new one may have read its settings before the file changed, so the old one reloads nothing from
before it starts the new one until it is clear who serves.

Both accept for a moment, so no connection is refused, and those that the kernel has queued belong
to the socket. Whatever goes wrong before "ready" leaves the old process as it was.

The old process decides who serves: the new one by "handed_over", neither of them by "stop". An end
without a word is a crash, after which the new process serves alone.

`Upgrader` is the old process, `Succession` the new one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from lb.domain.errors import LoadBalancerError
from lb.runtime.child_end import end_within
from lb.runtime.handover import (
    Peer,
    operator_state,
    resume_operator_state,
    sequence_news,
)
from lb.runtime.listeners import ListenerSet
from lb.runtime.next_process import READY_S, STOP_S, obstacle, start_process
from lb.runtime.predecessor import Predecessor
from lb.runtime.reload import Reloader
from lb.runtime.sequence_news import SequenceNews
from lb.runtime.signals import ready, reloading
from lb.runtime.wiring import LoadBalancer

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 1 << 20
"""The longest message of the new process."""
_STATE_LINE_BYTES: Final = 16 << 20
"""The longest message of the old process: what operators have said may be long."""
_MOST_GREETING: Final = 64 << 10
"""Characters: what nobody reads yet must fit the buffer of the socket. What does not is told later,
and backends that operators added are then probed only once the new process serves."""


class UpgradeFailed(LoadBalancerError):
    """The next process did not become ready; this one goes on. The message says why."""


class Upgrader:
    """Starts the next process."""

    def __init__(
        self,
        balancer: LoadBalancer,
        listener_set: ListenerSet,
        reloader: Reloader,
        give_way: Callable[[int], Awaitable[None]],
        stop: Callable[[Peer, bool], None],
        command: tuple[str, ...] | None = None,
        ready_timeout_s: float = READY_S,
    ) -> None:
        """
        Args:
            balancer: its state is handed over.
            listener_set: its sockets likewise.
            reloader: reloads nothing during an upgrade.
            give_way: called with the id of the new process once that accepts. It may raise
                LoadBalancerError, and then the upgrade has failed.
            stop: called when the new process was told to stop; see `Peer`.
            command: that starts it; the one that started this process if left out.
            ready_timeout_s: then a new process that is not ready is stopped.
        """
        self._ready_timeout_s = ready_timeout_s
        self._balancer = balancer
        self._listener_set = listener_set
        self._reloader = reloader
        self._give_way = give_way
        self._stop = stop
        self._command = command or (sys.executable, *sys.orig_argv[1:])
        self.news = sequence_news(balancer)
        """Of sequences, for all processes that hear of them."""
        self._lock = asyncio.Lock()
        self._starting: subprocess.Popen[bytes] | None = None
        """The next process, until it has taken over."""
        self._deadline: asyncio.Timeout | None = None
        """Ends the conversation with it when it takes too long."""
        self.successor: Peer | None = None
        """The process that has taken over."""
        self.begun = asyncio.Event()
        """This process serves: nobody takes over before."""
        self.closed = ""
        """Why nobody may take over any more, if so."""

    async def upgrade(self, why: str) -> int:
        """Start the next process and give way to it. Returns its id.

        Raises:
            UpgradeFailed: this process goes on.
        """
        if reason := obstacle():
            raise self._failed(why, reason)
        if self._lock.locked():
            raise self._failed(why, "another upgrade is under way")
        await self.begun.wait()
        async with self._lock, self._reloader.upgrading():
            if self.closed:
                raise self._failed(why, self.closed)
            reloading(os.environ)
            try:
                pid = await self._replace(why)
            except UpgradeFailed:
                if not self.closed:
                    ready(os.environ)
                raise
            ready(os.environ, main_pid=pid)
            return pid

    async def ask(self, why: str) -> None:
        """As `upgrade`, for those who do not wait for its outcome."""
        try:
            await self.upgrade(why)
        except UpgradeFailed:
            return  # it is in the log

    def stop(self, *, force: bool) -> None:
        """This process was told to stop: abandon an upgrade that is under way.

        Args:
            force: whether the new process is killed if it runs.
        """
        self.closed = self.closed or "the process shuts down"
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0.0)
        if force and self._starting is not None:
            self._starting.kill()

    async def aclose(self) -> None:
        """This process ends. After `stop`, wait until the new process of an upgrade that was
        abandoned has ended."""
        if self.closed:
            async with self._lock:
                pass
        if self.successor is not None:
            self.successor.close()

    # One upgrade

    async def _replace(self, why: str) -> int:
        operator = operator_state(self._balancer)
        is_short = len(json.dumps(operator)) < _MOST_GREETING
        words = {"operator": operator} if is_short else {}
        listeners = self._listener_set.listeners
        try:
            process, ours = await start_process(self._command, listeners, words)
        except OSError as error:
            raise self._failed(why, str(error)) from error
        self._starting = process
        _log.info("next process started", extra={"by": why, "pid": process.pid})
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES)
        peer = Peer("next process", reader, writer, self.news, self._stop)
        reason = await self._until_ready(peer) or await self._hand_over(peer, process)
        if not reason:
            self._starting = None
            return process.pid
        code = await self._abandon(peer, process)
        raise self._failed(why, f"{reason} (it ended with {code})")

    async def _until_ready(self, peer: Peer) -> str:
        """Talk to the new process until it is ready. Returns why it does not become so."""
        limit_s = self._ready_timeout_s
        try:
            async with asyncio.timeout(limit_s) as self._deadline:
                if not self.closed:
                    await self._converse(peer)
        except TimeoutError:
            return self.closed or f"the new process was not ready within {limit_s:g}s"
        except (OSError, ValueError) as error:
            return f"the new process has gone: {error}"
        except UpgradeFailed as failure:
            return str(failure)
        finally:
            self._deadline = None
        return self.closed

    async def _hand_over(self, peer: Peer, process: subprocess.Popen[bytes]) -> str:
        """Make the new process the service. Returns why that cannot be."""
        if process.poll() is not None:
            return "the new process ended as soon as it was ready; its log says why"
        try:
            await self._give_way(process.pid)
        except LoadBalancerError as error:
            return str(error)
        if self.closed:
            return self.closed  # a stop came while the file was written
        _log.info("next process is ready", extra={"pid": process.pid})
        self.closed = f"process {process.pid} has taken over"
        self.successor = peer
        peer.say("handed_over")
        self._balancer.parts.tasks.spawn(peer.follow(), name="next process")
        process.returncode = 0  # we shall not wait for its end, whatever `Popen` thinks of that
        return ""

    async def _abandon(self, peer: Peer, process: subprocess.Popen[bytes]) -> int:
        """End a new process that is not to serve, and return its exit code."""
        peer.say("stop", False)
        process.terminate()  # it may not listen yet
        shutdown = self._balancer.settings.shutdown
        limit_s = STOP_S
        if peer.shares_news:  # it may have clients
            limit_s += shutdown.pre_stop_delay + shutdown.drain
        code = await end_within(process, limit_s)
        peer.close()
        self._starting = None
        return code

    def _failed(self, why: str, reason: str) -> UpgradeFailed:
        message = "upgrade failed" if self.closed else "upgrade failed, this process goes on"
        _log.error(message, extra={"by": why, "why": reason})
        return UpgradeFailed(reason)

    async def _converse(self, peer: Peer) -> None:
        """Answer until the new process is ready."""
        while (event := await peer.hear()) is not None:
            if "failed" in event:
                raise UpgradeFailed(f"the new process says: {event['failed']}")
            if "prepared" in event:
                await self._tell_state(peer)
            if "ready" in event:
                return
        raise UpgradeFailed("the new process ended before it was ready; its log says why")

    async def _tell_state(self, peer: Peer) -> None:
        """Tell what exists nowhere else, and go on telling until we end."""
        peer.say("operator", operator_state(self._balancer))
        peer.share_news()
        for rows in self.news.parts():
            peer.tell(rows)
            await peer.flush()
            await asyncio.sleep(0)
        peer.say("begin")
        await peer.flush()


class Succession:
    """The conversation with the process before, from its successor's side."""

    def __init__(
        self,
        predecessor: Predecessor,
        balancer: LoadBalancer,
        stop: Callable[[Peer, bool], None],
        news: SequenceNews | None = None,
        reload: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            predecessor: the process before.
            balancer: gets its state.
            stop: called when the process before was told to stop, or does not want this one; see
                `Peer`.
            news: of sequences, where other processes hear of them as well.
            reload: called when the process before was told to reload; see `Peer`.
        """
        self.predecessor = predecessor
        self._balancer = balancer
        self._stop = stop
        self._news = news or sequence_news(balancer)
        self._reload = reload
        self._peer: Peer | None = None
        self._is_dismissed = False
        self.is_done = False
        """We are the service: the process before has handed over, or has crashed."""

    @property
    def peer(self) -> Peer | None:
        """The process before while it finishes what it has, and we are the service."""
        return self._peer if self.is_done else None

    async def take_over(self) -> None:
        """Everything is prepared: hear what exists nowhere else. If the process before has crashed,
        there is nobody to wait for.

        Raises:
            ValueError: it says something unknown.
        """
        channel = self.predecessor.channel
        channel.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=channel, limit=_STATE_LINE_BYTES)
        self._peer = Peer(
            "process before this one", reader, writer, self._news, self._on_stop, self._reload
        )
        self._peer.say("prepared")
        while (event := await self._peer.hear()) is not None:
            if "operator" in event:
                resume_operator_state(self._balancer, event["operator"])
            if "begin" in event or self._is_dismissed:
                return
        _log.warning("process before this one went before it had told everything")

    def accepts(self) -> None:
        """Tell the process before that we accept connections."""
        if self._peer is not None and not self._peer.is_gone:
            self._peer.say("ready", os.getpid())
            self._peer.share_news()

    async def answer(self) -> None:
        """Wait until the process before has said who serves. May be called again when it was
        cancelled."""
        peer = self._peer
        while peer is not None and not self.is_done and not self._is_dismissed:
            event = await peer.hear()
            if event is None:
                _log.warning("process before this one went before it had handed over")
                peer.close()
                self.is_done = True
            elif "handed_over" in event:
                self.is_done = True
                self._balancer.parts.tasks.spawn(peer.follow(), name="process before")

    def decline(self, reason: str) -> None:
        """Tell the process before that we shall not serve, so that it goes on."""
        if self._peer is None:
            self.predecessor.tell("failed", reason)
        else:
            self._peer.say("failed", reason)

    def close(self) -> None:
        """This process ends."""
        if self._peer is None:
            self.predecessor.channel.close()
        else:
            self._peer.close()

    def _on_stop(self, peer: Peer, force: bool) -> None:
        self._is_dismissed = not self.is_done
        self._stop(peer, force)
