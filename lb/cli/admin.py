"""`triton-lb backends|models|drain|enable|disable`: talk to the admin API of a running process."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from lb.domain.backend import parse_address

TOKEN_VARIABLE: Final = "TRITON_LB_ADMIN_TOKEN"
_TIMEOUT_S: Final = 10.0
_LONGEST_TOKEN: Final = 1024
_HEADINGS: Final = ("NAME", "STATE", "SINCE", "IN FLIGHT", "SERVED", "P50", "P99", "WHY")
_MODEL_HEADINGS: Final = ("MODEL", "VERSION", "STATE", "REASON")
_NUMBERS: Final = frozenset({"SINCE", "IN FLIGHT", "SERVED", "P50", "P99"})
"""Columns that are aligned to the right."""


class AdminError(Exception):
    """The admin API cannot be reached, or refused; the message is for the user."""


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """Where the admin API is, and what it wants to see."""

    address: str
    """`http://HOST:PORT`, `HOST:PORT` or `unix:PATH`."""
    token: str = field(default="", repr=False)


def find_token(path: str | None, env: Mapping[str, str]) -> str:
    """The token for the admin API: from a file, or else from the environment; empty without.

    There is no option for the token itself: everybody on a machine sees the arguments of all
    processes.

    Raises:
        AdminError: the file cannot be read, or what is there is no token.
    """
    if path is None:
        source, token = TOKEN_VARIABLE, env.get(TOKEN_VARIABLE, "").strip()
    else:
        source, token = f"--token-file {path}", _first_line(path)
    if not (token.isascii() and token.isprintable()) or (path is not None and not token):
        raise AdminError(f"{source}: this is no token")
    return token


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(_LONGEST_TOKEN).strip()
    except OSError as error:
        raise AdminError(f"--token-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"--token-file {path}: it is not UTF-8 text") from error


def list_backends(admin: AdminTarget) -> int:
    """Print a table of the backends.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        answer = _call(admin, "GET", "/api/v1/backends")
        lines = _table([_row(backend) for backend in answer["backends"]], _HEADINGS)
    except AdminError as error:
        return _fail(error)
    except (LookupError, TypeError):
        return _fail(_foreign(admin))
    print(*lines, sep="\n")
    return 0


def list_models(admin: AdminTarget, name: str) -> int:
    """Print which models a backend has, and what it has not like the others.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        answer = _call(admin, "GET", f"/api/v1/backends/{quote(name, safe='')}/models")
        keys = ("name", "version", "state", "reason")
        rows = [tuple(_printable(model[key]) for key in keys) for model in answer["models"]]
        lines = _table(rows, _MODEL_HEADINGS) if answer["listed"] else [_unlisted(name, answer)]
        drift = answer["drift"]
        lacking = ", ".join(map(_printable, drift["models"]))
        reconfigured = ", ".join(map(_printable, drift["configurations"]))
        differing = ", ".join(drift["settings"])
    except AdminError as error:
        return _fail(error)
    except (LookupError, TypeError):
        return _fail(_foreign(admin))
    if lacking:
        lines.append(f"not ready here, but on another backend: {lacking}")
    if reconfigured:
        lines.append(f"not configured as on most backends: {reconfigured}")
    if differing:
        lines.append(f"settings that differ from most backends: {differing}")
    print(*lines, sep="\n")
    return 0


def _unlisted(name: str, answer: Mapping[str, Any]) -> str:
    if answer["listed"] is None:
        return f"{name} has not listed its models yet"
    return f"{name} does not list its models"


def _printable(value: Any) -> str:
    """A backend's text, harmless to a terminal."""
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


def change_backend(admin: AdminTarget, name: str, action: str) -> int:
    """Drain, enable or disable one backend and say what became of it.

    Args:
        admin: whom to ask.
        name: of the backend.
        action: `drain`, `enable` or `disable`.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        backend = _call(admin, "POST", f"/api/v1/backends/{quote(name, safe='')}/{action}")
        state, in_flight = backend["state"], backend["in_flight"]
        sequences = backend.get("open_sequences", 0)
    except AdminError as error:
        return _fail(error)
    except (LookupError, TypeError):
        return _fail(_foreign(admin))
    running = f", {sequences} sequences open" if sequences else ""
    print(f"{name}: {state}, {in_flight} in flight{running}")
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


def _call(admin: AdminTarget, method: str, path: str) -> Any:
    """Return the JSON of the answer.

    Raises:
        AdminError: not reached, refused, or not the admin API.
    """
    connection = _connection(admin.address)
    headers = {"Authorization": f"Bearer {admin.token}"} if admin.token else {}
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise AdminError(f"cannot reach the admin API at {admin.address}: {reason}") from error
    except http.client.HTTPException as error:
        raise _foreign(admin) from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise _foreign(admin) from error
    if response.status == http.client.UNAUTHORIZED:
        raise AdminError(f"the admin API wants a token: --token-file FILE or {TOKEN_VARIABLE}")
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


def _foreign(admin: AdminTarget) -> AdminError:
    return AdminError(f"what answers at {admin.address} is not the admin API of triton-lb")


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


def _table(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...]) -> list[str]:
    columns = list(zip(headings, *rows, strict=True))
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
