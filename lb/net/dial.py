"""Connecting to a backend: the only place that turns connection errors into outcomes.

Host names are resolved anew at every dial, because a container that was restarted keeps its
name and changes its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, Final, TypeVar

from lb.domain.backend import Address
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.iteration import IterationBudget
from lb.net.timeouts import fair_timeout
from lb.net.tls.client import ClientTls
from lb.net.tls.connect import DialledTls
from lb.net.tls.contexts import TlsError

_ProtocolT = TypeVar("_ProtocolT")

_KNOWN_HOSTS: Final = 4096
"""Backends are dialled again and again, and to read an address takes as long as to connect."""

_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.2
"""Between two tries of a Unix socket whose listen queue is full. Five hundred requests that wait
for it cost a twentieth of a processor so."""


async def dial(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    protocol_factory: Callable[[], _ProtocolT],
    timeout_s: float,
    *,
    tls: ClientTls | None = None,
    handshake_s: float = 10.0,
    iteration: IterationBudget | None = None,
) -> tuple[asyncio.Transport, _ProtocolT]:
    """Connect, trying every address of a host name in the resolver's order.

    Both event loops set TCP_NODELAY by themselves.

    Args:
        loop: the running loop.
        address: of the backend's port.
        protocol_factory: makes the protocol of the new connection.
        timeout_s: for resolving and all attempts together; each address that is left gets an
            equal share of what is left, so that one black hole does not hide the others.
        tls: of the port; the connection is verified before anything is sent over it.
        handshake_s: seconds for the handshake, beyond those for connecting.
        iteration: the budget that decrypting counts against; None: one for this connection alone.

    Raises:
        UpstreamError: with CONNECT_REFUSED when every address refused or reset the connection
            (or the Unix socket does not exist), CONNECT_TIMEOUT, or CONNECT_FAILED, which is
            what a failed handshake is.
    """
    if tls is None:
        return await _reach(loop, address, protocol_factory, timeout_s)
    if not tls.is_loaded:
        await _settle(tls, address, timeout_s)
    budget = iteration or IterationBudget(loop)
    transport, secure = await _reach(
        loop, address, lambda: DialledTls(tls, address, protocol_factory, loop, budget), timeout_s
    )
    try:
        async with fair_timeout(loop, handshake_s):
            protocol = await secure.secured
    except TlsError as error:
        detail = f"TLS with {address} failed: {error}"
        raise UpstreamError(Outcome.CONNECT_FAILED, detail) from error
    except TimeoutError as error:
        detail = f"TLS with {address} failed: no handshake within {handshake_s:g}s"
        raise UpstreamError(Outcome.CONNECT_FAILED, detail) from error
    finally:
        if not secure.is_open:
            transport.abort()
    return secure, protocol


async def _settle(tls: ClientTls, address: Address, timeout_s: float) -> None:
    """Wait until the certificates of a backend are loaded."""
    try:
        async with fair_timeout(asyncio.get_running_loop(), timeout_s):
            await tls.settled.wait()
    except TimeoutError as error:
        detail = f"TLS with {address} failed: its certificates have not been read yet"
        raise UpstreamError(Outcome.CONNECT_FAILED, detail) from error
    if not tls.is_loaded:
        raise UpstreamError(Outcome.CONNECT_FAILED, str(tls.problem))


async def _reach(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    protocol_factory: Callable[[], _ProtocolT],
    timeout_s: float,
) -> tuple[asyncio.Transport, _ProtocolT]:
    """Connect without TLS."""
    if address.path:
        return await _attempt(loop, address, None, protocol_factory, timeout_s)
    if is_numeric(address.host):
        return await _attempt(loop, address, address.host, protocol_factory, timeout_s)
    give_up_at = loop.time() + timeout_s
    hosts = await _resolve(loop, address, timeout_s)
    failure: UpstreamError | None = None
    for index, host in enumerate(hosts):
        share_s = max(give_up_at - loop.time(), 0.0) / (len(hosts) - index)
        try:
            return await _attempt(loop, address, host, protocol_factory, share_s)
        except UpstreamError as error:
            # "Refused" means that the port is closed; one address that may live denies that.
            if failure is None or error.outcome is not Outcome.CONNECT_REFUSED:
                failure = error
    if failure is None:
        raise UpstreamError(Outcome.CONNECT_FAILED, f"{address.host} has no address")
    raise failure


async def _resolve(
    loop: asyncio.AbstractEventLoop, address: Address, timeout_s: float
) -> list[str]:
    """The numeric addresses of a host name, without repetitions."""
    try:
        async with fair_timeout(loop, timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=SOCK_STREAM)
    except TimeoutError as error:
        raise UpstreamError(
            Outcome.CONNECT_TIMEOUT, f"resolving {address.host} took too long"
        ) from error
    except (OSError, UnicodeError) as error:
        # UnicodeError: the name cannot be written as a host name (an empty or long label).
        raise UpstreamError(
            Outcome.CONNECT_FAILED, f"cannot resolve {address.host}: {error}"
        ) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@lru_cache(_KNOWN_HOSTS)
def is_numeric(host: str) -> bool:
    """Whether a host is an address itself, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _attempt(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    host: str | None,
    protocol_factory: Callable[[], _ProtocolT],
    timeout_s: float,
) -> tuple[asyncio.Transport, _ProtocolT]:
    # Connections that are compiled are no asyncio.Protocol (docs/decisions/0021-compiling.md), and
    # event loops only call its methods.
    factory: Callable[[], Any] = protocol_factory
    try:
        async with fair_timeout(loop, timeout_s):
            if host is None:
                return await _connect_unix(loop, address.path, factory)
            return await loop.create_connection(factory, host, address.port)
    except OSError as error:
        raise connect_failure(address, error) from error


async def _connect_unix(
    loop: asyncio.AbstractEventLoop, path: str, factory: Callable[[], Any]
) -> tuple[asyncio.Transport, Any]:
    """Connect to a Unix socket. While its listen queue is full the system refuses at once, where it
    would send TCP's SYN again: so this tries again until it is cancelled."""
    pause_s = _FIRST_PAUSE_S
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
                break
            except BlockingIOError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return await loop.create_unix_connection(factory, sock=sock)
    except BaseException:
        sock.close()
        raise


def connect_failure(address: Address, error: OSError) -> UpstreamError:
    """What it means that a connection could not be made."""
    if isinstance(error, TimeoutError):
        # The system's own ETIMEDOUT is one as well.
        detail = f"{address} did not accept a connection in time"
        return UpstreamError(Outcome.CONNECT_TIMEOUT, detail)
    if isinstance(error, (ConnectionRefusedError, ConnectionResetError, FileNotFoundError)):
        return UpstreamError(Outcome.CONNECT_REFUSED, f"{address} refused the connection")
    return UpstreamError(Outcome.CONNECT_FAILED, f"cannot connect to {address}: {error}")
