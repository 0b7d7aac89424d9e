"""`triton-lb backends|drain|enable|disable`: talk to the admin API of a running process."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from lb.domain.backend import parse_address

_TIMEOUT_S: Final = 10.0
_HEADINGS: Final = ("NAME", "STATE", "SINCE", "IN FLIGHT", "SERVED", "P50", "P99", "WHY")
_NUMBERS: Final = frozenset({"SINCE", "IN FLIGHT", "SERVED", "P50", "P99"})
"""Columns that are aligned to the right."""


class AdminError(Exception):
    """The admin API cannot be reached, or refused; the message is for the user."""


def list_backends(admin: str) -> int:
    """Print a table of the backends.

    Args:
        admin: address of the admin API: `http://HOST:PORT`, `HOST:PORT` or `unix:PATH`.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        answer = _call(admin, "GET", "/api/v1/backends")
        lines = _table([_row(backend) for backend in answer["backends"]])
    except AdminError as error:
        return _fail(error)
    except (LookupError, TypeError):
        return _fail(_foreign(admin))
    print(*lines, sep="\n")
    return 0


def change_backend(admin: str, name: str, action: str) -> int:
    """Drain, enable or disable one backend and say what became of it.

    Args:
        admin: as for `list_backends`.
        name: of the backend.
        action: `drain`, `enable` or `disable`.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        backend = _call(admin, "POST", f"/api/v1/backends/{quote(name, safe='')}/{action}")
        state, in_flight = backend["state"], backend["in_flight"]
    except AdminError as error:
        return _fail(error)
    except (LookupError, TypeError):
        return _fail(_foreign(admin))
    print(f"{name}: {state}, {in_flight} in flight")
    return 0


# The connection


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _call(admin: str, method: str, path: str) -> Any:
    """Return the JSON of the answer.

    Raises:
        AdminError: not reached, refused, or not the admin API.
    """
    connection = _connection(admin)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise AdminError(f"cannot reach the admin API at {admin}: {reason}") from error
    except http.client.HTTPException as error:
        raise _foreign(admin) from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise _foreign(admin) from error
    if response.status != http.client.OK:
        raise AdminError(str(answer["error"]) if "error" in answer else f"HTTP {response.status}")
    return answer


def _connection(admin: str) -> http.client.HTTPConnection:
    try:
        address = parse_address(admin.removeprefix("http://").rstrip("/"))
    except ValueError as error:
        raise AdminError(f"--admin: {error}") from error
    if address.path:
        return _UnixConnection(address.path, _TIMEOUT_S)
    return http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)


def _foreign(admin: str) -> AdminError:
    return AdminError(f"what answers at {admin} is not the admin API of triton-lb")


def _fail(error: AdminError) -> int:
    print(f"triton-lb: {error}", file=sys.stderr)
    return 1


# The table


def _row(backend: Mapping[str, Any]) -> tuple[str, ...]:
    latency = backend["latency"]
    return (
        backend["name"],
        backend["state"],
        _duration(backend["since_s"]),
        str(backend["in_flight"]),
        str(backend["served"]),
        _milliseconds(latency["p50_ms"]),
        _milliseconds(latency["p99_ms"]),
        backend["why"],
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    columns = list(zip(_HEADINGS, *rows, strict=True))
    padded = []
    for column in columns:
        width = max(len(cell) for cell in column)
        right = column[0] in _NUMBERS
        padded.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def _duration(seconds: float) -> str:
    """`12s`, `3m05s`, `2h07m`, `4d02h`."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole:02}s" if minutes else f"{whole}s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}ms"
