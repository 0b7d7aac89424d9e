"""Connections to backends that are dead although nobody said so.

A firewall that forgot a connection drops what comes over it, and TCP goes on sending for a quarter
of an hour. Probes find nothing, since new connections work. So those that owe an answer, or an
acknowledgement, are checked now and then: where nothing that was sent is acknowledged although it
was sent again, even after the same port was heard from otherwise, the connection is given up.

What has become of the requests does not matter: where deadlines end them all early, there is none
that has waited for long, and yet the next ones would go the same way.

Not TCP_USER_TIMEOUT: that would also end connections to a server that acknowledges and does not
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lb.domain.backend import Port
from lb.net.sockets import unacknowledged

_INTERVAL_S: Final = 1.0
"""Between two scans."""
_DOUBT_S: Final = 0.5
"""Without an acknowledgement: from then on it is noted when the port is heard from."""
_SILENT_S: Final = 2.0
"""Without one, after which it may be given up."""
_WAY_S: Final = 0.1
"""What an acknowledgement may take."""


class Owing(Protocol):
    """A connection over which an answer is to come, or an acknowledgement."""

    transport: asyncio.Transport | None
    """None once it is closed."""

    @property
    def port(self) -> Port:
        """The port of the backend."""
        ...

    @property
    def owes_since(self) -> float:
        """When the oldest request under way was sent, or so; infinite where there is none."""
        ...

    def unheard(self) -> None:
        """Nothing that is sent over it arrives."""
        ...


class _Silence:
    """Something that was sent over a connection is not acknowledged."""

    def __init__(self, acknowledged_at: float, since: float) -> None:
        self.acknowledged_at = acknowledged_at
        """The last time that anything was; give or take some milliseconds."""
        self.since = since
        """At the latest from then on, something was waiting for it."""
        self.heard_at = 0.0
        """When the port was heard from after that."""


class DeadPeerDetector:
    """Looks after the connections of both relays to backends. A check of the monitor."""

    def __init__(self, owing: Callable[[], Iterable[Owing]]) -> None:
        """
        Args:
            owing: gives the connections over which answers or acknowledgements may be to come.
        """
        self._owing = owing
        self._silences: dict[Owing, _Silence] = {}
        """How long connections are silent, of those that were at the last scan."""
        self.may_rest = True
        """No connection owed anything at the last scan."""
        self.count = 0
        """Connections that were given up."""

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> tuple[Owing, ...]:
        """See `Check`."""
        owing = tuple(self._owing())
        self.may_rest = not owing
        self._silences = {each: it for each, it in self._silences.items() if each.transport}
        return owing

    def check(self, connection: Owing, now: float) -> None:
        """See `Check`."""
        if self._note_silence(connection, now):
            self.count += 1
            connection.unheard()

    def end(self) -> None:
        """See `Check`."""

    def _note_silence(self, connection: Owing, now: float) -> bool:
        """Note how long a connection has been silent. Returns whether nothing that is sent over it
        arrives, while its port answers otherwise: something was sent again after the port was heard
        from, and still is not acknowledged."""
        silence = self._silences.pop(connection, None)
        transport = connection.transport
        sent = None if transport is None else unacknowledged(transport)
        if sent is None or sent.silent_s < _DOUBT_S:
            return False
        acknowledged_at = now - sent.silent_s
        if silence is None or acknowledged_at > silence.acknowledged_at + _WAY_S:
            since = max(acknowledged_at, min(connection.owes_since, now))
            silence = _Silence(acknowledged_at, since)
        self._silences[connection] = silence
        if silence.heard_at <= silence.since:
            port = connection.port
            silence.heard_at = max(port.last_byte_at, port.probed_at)
        return (
            now - silence.since >= _SILENT_S
            and sent.resent_s >= _WAY_S
            and silence.since < silence.heard_at <= now - sent.resent_s
        )
