"""A transport with TLS on top of a plain one, the same for clients and backends.

Event loops have such transports too. This one lets us read a client's hello before a context is
chosen, tells a connection that was cut from one that was closed, can be closed by halves, hands
over what one read brought in one piece, and needs no task for a handshake. The TLS library works
on buffers in memory; all waiting, pausing and limiting is the plain transport's.

A read of 256 KiB may hold ten thousand records of a byte, or as many key updates, which take a
tenth of a second. So records are counted against the budget of the loop iteration. Once it is
spent, the rest of the read is decrypted in later iterations, and nothing more is read meanwhile.

A step of a handshake may sign, which takes from a tenth of a millisecond to several, depending on
the key. Steps count by the time that they take. Steps with clients wait for their turn.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, cast

from lb.net.iteration import IterationBudget

_RECORD: Final = 16 * 1024
"""The library never gives more at once."""
_SLICE: Final = 32 * 1024
"""What is encrypted at once. The library's buffers never shrink: after one read or write of 256 KiB
in one piece, each would keep as much for as long as its connection stands."""
_HEADER: Final = 5
"""Bytes of a record's header, the last two of which are the length of the rest (RFC 8446 5.1)."""
_READ_SLICE: Final = 2 * (_HEADER + _RECORD + 256)
"""What is given to the library at once: two records, which may not be longer (RFC 8446 5.2)."""
_RECORDS_AT_ONCE: Final = 32
"""Records that are decrypted before the budget is looked at: half a millisecond of key updates."""
_FEW_RECORDS: Final = 8
"""Records with data in one slice that are not counted: ordinary traffic has no more."""
_RECORD_COST: Final = 1
"""Units of `IterationBudget` for a record."""
_CONTROL_COST: Final = 15
"""Units on top of that for a record without data. A key update makes new keys, and another time
for its answer; 16 us together were measured."""

Payload = bytes | bytearray | memoryview


class TlsTransport(asyncio.Protocol, asyncio.Transport, ABC):
    """Protocol of the plain transport, and transport of the protocol above."""

    __slots__ = (
        "_at", "_closing", "_eof_sent", "_eof_waits", "_failure", "_goes_on", "_incoming",
        "_is_held_back", "_is_open", "_is_paused", "_iteration", "_missing", "_object", "_outgoing",
        "_peer_ended", "_protocol", "_raw", "_unread",
    )  # fmt: skip

    def __init__(self, iteration: IterationBudget) -> None:
        """
        Args:
            iteration: the budget of costly work, which all connections share.
        """
        self._raw: asyncio.Transport | None = None
        """None before it is connected and once it is lost."""
        self._protocol: asyncio.Protocol | None = None
        """Set when the handshake is complete."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: ssl.SSLObject | None = None
        """Set when the context is known."""
        self._is_open = False
        """The handshake is complete."""
        self._closing = False
        self._eof_sent = False
        self._peer_ended = False
        self._failure: Exception | None = None
        """Why the connection was lost, where the plain transport cannot know."""
        self._iteration = iteration
        self._missing = 0
        """Bytes of the current record that the library has not got yet."""
        self._unread = b""
        """Received bytes for a later iteration, or the beginning of a record's header."""
        self._at = 0
        """How many of these bytes the library has got."""
        self._is_held_back = False
        """Bytes wait for a later iteration, and the plain transport does not read meanwhile."""
        self._goes_on = False
        """`_go_on` will be called: bytes are held back, or a step of the handshake waits."""
        self._is_paused = False
        """The protocol above does not want data."""
        self._eof_waits = False
        """The plain connection's end came while bytes were held back."""

    # Handshake

    @property
    def is_open(self) -> bool:
        """Whether the handshake is complete."""
        return self._is_open

    @property
    @abstractmethod
    def shakes_in_turn(self) -> bool:
        """Whether steps of the handshake wait while the budget of the loop iteration is spent."""

    @abstractmethod
    def greeted(self, data: bytes) -> None:
        """Bytes came while there is no context yet."""

    @abstractmethod
    def opened(self) -> asyncio.Protocol | None:
        """The handshake is complete: return whose transport this is from now on. None when it
        must not be used."""

    @abstractmethod
    def not_opened(self, error: Exception | None) -> None:
        """There will be no connection: the handshake failed, or it was lost meanwhile."""

    @property
    @abstractmethod
    def heeds_cuts(self) -> bool:
        """Whether an end without a goodbye is a loss, because lengths may hang on it."""

    def start(self, secure: ssl.SSLObject, data: bytes = b"") -> None:
        """Begin the handshake, with what the peer has sent already."""
        self._object = secure
        if data:
            self._receive(data)
        else:
            self._shake(secure)

    def make_object(self, context: ssl.SSLContext, **options: Any) -> ssl.SSLObject:
        """A connection of the library on our buffers."""
        return context.wrap_bio(self._incoming, self._outgoing, **options)

    def _shake(self, secure: ssl.SSLObject) -> None:
        if self._raw is None:
            return
        iteration = self._iteration
        began = iteration.cpu_time()
        try:
            secure.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self.give_up(error)
            return
        finally:
            iteration.spend_time(began)
        self._flush()
        protocol = self.opened()
        if protocol is None:
            return
        self._protocol = protocol
        self._is_open = True
        protocol.connection_made(self)

    def give_up(self, error: Exception) -> None:
        """Tell the peer what the library has to say about it, and close."""
        # Its frames would keep this connection, and the library's buffers, in a cycle.
        self._failure = error.with_traceback(None)
        raw = self._raw
        if raw is None:
            return
        self._closing = True
        # A peer that does not read must not keep a connection that is over.
        takes_it = not raw.get_write_buffer_size()
        self._flush()
        if takes_it:
            raw.close()
        else:
            raw.abort()

    def _flush(self) -> None:
        """Send what the library has to say by itself. After our goodbye nothing may follow (RFC
        8446 6.1), so answers to key updates are dropped then."""
        if self._outgoing.pending and self._raw is not None:
            sealed = self._outgoing.read()
            if not self._eof_sent:
                self._raw.write(sealed)

    # Protocol of the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the plain connection stands."""
        self._raw = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        secure = self._object
        if secure is None:
            if not self._closing:
                self.greeted(data)
        elif (
            not self._is_open
            or self._missing
            or self._unread
            or len(data) < _HEADER
            or len(data) != _HEADER + (data[3] << 8 | data[4])
        ):
            self._receive(data)
        elif not self._peer_ended and self._failure is None:
            self._receive_record(secure, data)

    def _receive_record(self, secure: ssl.SSLObject, data: bytes) -> None:
        """Take one whole record, which is what a small request is, and hand it over."""
        try:
            self._incoming.write(data)
            piece = secure.read(_RECORD)
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLZeroReturnError:
            piece = b""
        except ssl.SSLError as error:
            self.give_up(error)
            return
        if self._outgoing.pending:
            self._flush()
        if not piece:
            self._end_reading()
        elif self._protocol is not None:
            self._protocol.data_received(piece)

    def _receive(self, data: bytes) -> None:
        """Take what came, after what is left of earlier reads."""
        if self._unread:
            data = self._unread[self._at :] + data
        self._unread, self._at = data, 0
        if self._is_held_back:
            return
        if self._goes_on:
            # A peer that waits for its turn has nothing to say. Its end was noticed until now.
            self._hold_back(wanted=True)
        elif self._is_open or not self.shakes_in_turn or self._iteration.has_turn:
            self._read_on(0)
        else:
            self._goes_on = True
            self._iteration.later(self._go_on)

    def _go_on(self) -> None:
        """Decrypt more in a later iteration. The budget's queue calls this."""
        self._goes_on = False
        if not self._unread or self._is_paused or self._closing:
            return
        try:
            # One costly slice, since others are in the queue too.
            self._read_on(max(self._iteration.left - 1, 0))
        except Exception:
            # Event loops do the same if `data_received` fails: what it was given is lost.
            self.abort()
            raise

    def _read_on(self, enough: int) -> None:
        """Decrypt slice by slice, and hand over everything in one piece.

        Args:
            enough: stop when no more than this is left of the budget.
        """
        secure, iteration = self._object, self._iteration
        if secure is None or self._closing or self._peer_ended or self._failure is not None:
            self._unread = b""
            return
        data, at = self._unread, self._at
        total = len(data)
        pieces: list[bytes] = []
        failure: ssl.SSLError | None = None
        ended = False
        try:
            while at < total:
                most = _RECORDS_AT_ONCE if iteration.left > 0 else _FEW_RECORDS
                end, records = self._find_slice(data, at, most)
                if end == at:
                    break
                whole = end - at == total
                self._incoming.write(data if whole else memoryview(data)[at:end])
                at = end
                known = len(pieces)
                if not self._is_open:
                    self._shake(secure)
                if self._is_open and not self._closing:
                    ended = self._decrypt(secure, pieces)
                if ended or self._closing:
                    break
                without_data = records - len(pieces) + known
                if records > _FEW_RECORDS or without_data > 1:
                    iteration.spend(records * _RECORD_COST + max(without_data, 0) * _CONTROL_COST)
                if iteration.left <= enough:
                    break
        except ssl.SSLError as error:
            failure = error
        if ended or failure is not None or self._closing:
            at = total
        is_held_back = at < total and (self._missing > 0 or total - at >= _HEADER)
        if is_held_back:
            self._unread, self._at = data, at
        else:
            self._unread, self._at = data[at:], 0
        if is_held_back or self._is_held_back:
            self._hold_back(wanted=is_held_back)
        if self._outgoing.pending:
            self._flush()
        if pieces and self._protocol is not None:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if failure is not None:
            self.give_up(failure)
        elif ended:
            self._end_reading()
        elif self._eof_waits and not self._is_held_back:
            self._eof_waits = False
            self._end_plainly()

    def _find_slice(self, data: bytes, at: int, most: int) -> tuple[int, int]:
        """Find how much to give to the library at once: `most` records, as far as they have come.

        Returns:
            Where the slice ends, and how many records begin in it. It is empty where only a part
            of a header has come.
        """
        end = at + self._missing
        limit = at + _READ_SLICE
        came = min(len(data), limit)
        last = came - _HEADER
        records = 0
        while end <= last and records < most:
            after = end + _HEADER + (data[end + 3] << 8 | data[end + 4])
            if after > limit and end > at:
                break  # it would be cut
            end = after
            records += 1
        if end <= came:
            self._missing = 0
            return end, records
        self._missing = end - came
        return came, records

    def _hold_back(self, *, wanted: bool) -> None:
        """Let what was read wait for a later iteration, and the peer too; or read again."""
        if wanted and not (self._goes_on or self._is_paused):
            self._goes_on = True
            self._iteration.later(self._go_on)
        if wanted is self._is_held_back:
            return
        self._is_held_back = wanted
        raw = self._raw
        if raw is None or self._is_paused or raw.is_closing():
            return
        if wanted:
            raw.pause_reading()
        else:
            raw.resume_reading()

    def _decrypt(self, secure: ssl.SSLObject, pieces: list[bytes]) -> bool:
        """Take out what is complete. Returns whether the peer has said goodbye."""
        try:
            while piece := secure.read(_RECORD):
                pieces.append(piece)
                if not self._incoming.pending and not secure.pending():
                    return False
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            pass
        return True

    def _end_reading(self) -> None:
        """The peer said goodbye."""
        self._peer_ended = True
        if self._protocol is not None and not self._closing and not self._protocol.eof_received():
            self.close()

    def eof_received(self) -> bool:
        """asyncio: the peer sends nothing more. Returns whether we still do."""
        if not self._is_open:
            return False
        if self._is_held_back:
            self._eof_waits = True
            return True
        return self._end_plainly()

    def _end_plainly(self) -> bool:
        """The plain connection's end came, and everything before it is decrypted. Returns whether
        we still send."""
        if not self._peer_ended:
            if self.heeds_cuts:
                self._failure = ConnectionAbortedError("closed without the goodbye of TLS")
                self.abort()
                return True
            self._end_reading()
        return not self._closing

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the plain connection is gone."""
        self._raw = None
        self._closing = True
        self._unread = b""
        if self._is_open and self._protocol is not None:
            self._protocol.connection_lost(self._failure or exc)
        else:
            self.not_opened(self._failure or exc)
        self._object = self._protocol = None

    def pause_writing(self) -> None:
        """asyncio: more waits to be written than should."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """asyncio: the peer has caught up."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    # Transport of the protocol above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As transports of the event loop: what is not TLS's is asked of the plain transport."""
        secure = self._object
        if secure is not None:
            match name:
                case "sslcontext":
                    return secure.context
                case "ssl_object":
                    return secure
                case "peercert":
                    return secure.getpeercert()
                case "cipher":
                    return secure.cipher()
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol get what comes from now on."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who gets what comes."""
        if self._protocol is None:
            raise RuntimeError("the handshake is not complete")
        return self._protocol

    def write(self, data: Payload) -> None:
        """Encrypt and send."""
        raw, secure = self._raw, self._object
        if raw is None or secure is None or self._closing or self._eof_sent or not data:
            return
        view = memoryview(data)
        sealed: list[bytes] = []
        failure: ssl.SSLError | None = None
        try:
            for at in range(0, len(view), _SLICE):
                secure.write(view[at : at + _SLICE])
                sealed.append(self._outgoing.read())
        except ssl.SSLError as error:
            failure = error
        if len(sealed) == 1:
            raw.write(sealed[0])
        elif sealed:
            raw.writelines(sealed)
        if failure is not None:
            self.give_up(failure)

    def writelines(self, list_of_data: Iterable[Payload]) -> None:
        """Encrypt and send, in as few records as it takes."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """TLS can be closed by halves (RFC 8446 6.1)."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes from us, and go on reading."""
        if self._raw is not None and not self._eof_sent and not self._closing:
            self._say_goodbye()
            if self._raw.can_write_eof():
                self._raw.write_eof()

    def _say_goodbye(self) -> None:
        if self._eof_sent or not self._is_open or self._object is None:
            return
        self._eof_sent = True
        try:
            self._object.unwrap()
        except ssl.SSLError:
            pass  # it has written its goodbye, and wants to wait for the peer's
        if self._raw is not None:
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        """Send what waits, say goodbye and close."""
        if self._raw is not None and not self._closing:
            self._closing = True
            self._say_goodbye()
            self._raw.close()

    def abort(self) -> None:
        """Close now."""
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing or self._raw is None

    def is_reading(self) -> bool:
        """Whether reading is not paused."""
        return not (self._is_paused or self.is_closing())

    def pause_reading(self) -> None:
        """Let the peer wait."""
        self._is_paused = True
        if self._raw is not None and not self._is_held_back:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._is_held_back:
            self._hold_back(wanted=True)
        elif self._raw is not None:
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio; bytes are counted as they are encrypted."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return (0, 0) if self._raw is None else self._raw.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that wait to be sent."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()
