"""A transport with TLS on top of a plain one, the same for clients and backends.

Event loops have such transports too. This one lets us read a client's hello before a context is
chosen, tells a connection that was cut from one that was closed, can be closed by halves, hands
over what one read brought in one piece, and needs no task for a handshake. The TLS library works
on buffers in memory; all waiting, pausing and limiting is the plain transport's.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, cast

_RECORD: Final = 16 * 1024
"""The library never gives more at once."""
_SLICE: Final = 32 * 1024
"""What passes through the library's buffers at once. They never shrink: after one read or write of
256 KiB in one piece, each would keep as much for as long as its connection stands."""

Payload = bytes | bytearray | memoryview


class TlsTransport(asyncio.Protocol, asyncio.Transport, ABC):
    """Protocol of the plain transport, and transport of the protocol above."""

    __slots__ = (
        "_closing", "_eof_sent", "_failure", "_incoming", "_is_open", "_object", "_outgoing",
        "_peer_ended", "_protocol", "_raw",
    )  # fmt: skip

    def __init__(self) -> None:
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

    # Handshake

    @property
    def is_open(self) -> bool:
        """Whether the handshake is complete."""
        return self._is_open

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
        self._incoming.write(data)
        self._shake()

    def make_object(self, context: ssl.SSLContext, **options: Any) -> ssl.SSLObject:
        """A connection of the library on our buffers."""
        return context.wrap_bio(self._incoming, self._outgoing, **options)

    def _shake(self) -> None:
        if self._object is None or self._raw is None:
            return
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self.give_up(error)
            return
        self._flush()
        protocol = self.opened()
        if protocol is None:
            return
        self._protocol = protocol
        self._is_open = True
        protocol.connection_made(self)
        if not self._closing and (self._incoming.pending or self._object.pending()):
            self._deliver()

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
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    # Protocol of the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the plain connection stands."""
        self._raw = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        if self._is_open:
            self._deliver(data)
        elif self._closing:
            return
        elif self._object is None:
            self.greeted(data)
        else:
            self._incoming.write(data)
            self._shake()

    def _deliver(self, data: bytes = b"") -> None:
        """Take what came, and hand over everything that can be decrypted, in one piece."""
        protocol = self._protocol
        if self._object is None or protocol is None or self._peer_ended or self._failure:
            return
        pieces: list[bytes] = []
        failure: ssl.SSLError | None = None
        ended = False
        try:
            if len(data) <= _SLICE:
                self._incoming.write(data)
                ended = self._decrypt(self._object, pieces)
            else:
                ended = self._decrypt_slices(self._object, data, pieces)
        except ssl.SSLError as error:
            failure = error
        if self._outgoing.pending:
            self._flush()
        if pieces:
            protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if failure is not None:
            self.give_up(failure)
        elif ended:
            self._end_reading()

    def _decrypt_slices(self, secure: ssl.SSLObject, data: bytes, pieces: list[bytes]) -> bool:
        """As `_decrypt`, after taking what came slice by slice."""
        view = memoryview(data)
        for at in range(0, len(data), _SLICE):
            self._incoming.write(view[at : at + _SLICE])
            if self._decrypt(secure, pieces):
                return True
        return False

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
        self._flush()

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
        return self._raw is not None and self._raw.is_reading()

    def pause_reading(self) -> None:
        """Let the peer wait."""
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._raw is not None:
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
