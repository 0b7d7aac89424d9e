"""Taking over from the process before, which goes on until we accept; see `lb.runtime.upgrade`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from lb.runtime.handover import SequenceNews, resume_operator_state
from lb.runtime.peer import Peer
from lb.runtime.predecessor import Predecessor
from lb.runtime.wiring import LoadBalancer

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 16 << 20


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
        self._news = news or SequenceNews(balancer)
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
        reader, writer = await asyncio.open_unix_connection(sock=channel, limit=_LINE_BYTES)
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
