"""`triton-lb backends|models|drain|...`: talk to the admin API of a running process."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from lb.domain.backend import parse_address

TOKEN_VARIABLE: Final = "TRITON_LB_ADMIN_TOKEN"
_TIMEOUT_S: Final = 10.0
_RELOAD_S: Final = 120.0
_UPGRADE_S: Final = 3600.0
"""The process ends an upgrade by itself: a new process has a minute, and what `shutdown` allows."""
_LONGEST_TOKEN: Final = 1024
_LOOK_S: Final = 0.2
"""How often it is looked whether what is waited for has happened."""
_UP: Final = "up"
_ADDRESSES: Final = frozenset({"http", "grpc", "metrics"})
_FINE: Final = (http.client.OK, http.client.CREATED)
_HEADINGS: Final = ("NAME", "STATE", "SINCE", "IN FLIGHT", "SERVED", "P50", "P99", "WHY")
_GPU_HEADINGS: Final = ("GPU", "GPU MEMORY")
_MODEL_HEADINGS: Final = ("MODEL", "VERSION", "STATE", "REASON")
_NUMBERS: Final = frozenset({"SINCE", "IN FLIGHT", "SERVED", "P50", "P99", *_GPU_HEADINGS})
"""Columns that are aligned to the right."""


class Writer(Protocol):
    """What `print` needs of a stream."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> None:
        """Let go of it."""


class AdminError(Exception):
    """The admin API cannot be reached, or refused; the message is for the user."""


class NoSuchBackendError(AdminError):
    """There is no backend of that name."""


class ConflictError(AdminError):
    """What was asked for does not go together with how things are."""


_ERRORS: Final = {
    http.client.NOT_FOUND: NoSuchBackendError,
    http.client.CONFLICT: ConflictError,
}


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """Where the admin API is, and what it wants to see."""

    address: str
    """`http://HOST:PORT`, `HOST:PORT` or `unix:PATH`."""
    token: str = field(default="", repr=False)
    timeout_s: float = _TIMEOUT_S
    """For connecting, and for each pause in its answer."""
    out: Writer | None = field(default=None, repr=False)
    """Where to print; None is standard output."""
    err: Writer | None = field(default=None, repr=False)
    """Where to complain; None is standard error."""


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
        lines = _backend_table(answer["backends"])
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError):
        return _fail(admin, _foreign(admin))
    print(*lines, sep="\n", file=admin.out)
    return 0


def show_status(admin: AdminTarget) -> int:
    """Print in one line how a process does.

    Returns:
        The exit code: 0 while a backend is up, else 1.
    """
    try:
        backends = _call(admin, "GET", "/api/v1/backends")["backends"]
        states = {backend["name"]: str(backend["state"]) for backend in backends}
        up = sum(state == _UP for state in states.values())
        others = [f"{_printable(name)} {state}" for name, state in states.items() if state != _UP]
        in_flight = sum(int(backend["in_flight"]) for backend in backends)
        served = sum(int(backend["served"]) for backend in backends)
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError, ValueError):
        return _fail(admin, _foreign(admin))
    rest = f" ({', '.join(others)})" if others else ""
    text = f"{up} of {len(states)} backends up{rest}, {in_flight} in flight, {served} served"
    print(text, file=admin.out)
    return 0 if up else 1


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
        return _fail(admin, error)
    except (LookupError, TypeError):
        return _fail(admin, _foreign(admin))
    if lacking:
        lines.append(f"not ready here, but on another backend: {lacking}")
    if reconfigured:
        lines.append(f"not configured as on most backends: {reconfigured}")
    if differing:
        lines.append(f"settings that differ from most backends: {differing}")
    print(*lines, sep="\n", file=admin.out)
    return 0


def _unlisted(name: str, answer: Mapping[str, Any]) -> str:
    if answer["listed"] is None:
        return f"{name} has not listed its models yet"
    return f"{name} does not list its models"


def _printable(value: Any) -> str:
    """A backend's text, harmless to a terminal."""
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


def change_backend(
    admin: AdminTarget, name: str, action: str, *, limit: str | None = None, wait: bool = False
) -> int:
    """Drain, enable, disable or remove one backend and say what became of it.

    Args:
        admin: whom to ask.
        name: of the backend.
        action: `drain`, `enable`, `disable` or `remove`.
        limit: how long what runs on it may take.
        wait: return when nothing runs on it any more.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    path = _path_of(name)
    query = f"?limit={quote(limit, safe='')}" if limit is not None else ""
    try:
        if action == "remove":
            backend = _call(admin, "DELETE", f"{path}{query}")
        else:
            backend = _call(admin, "POST", f"{path}/{action}{query}")
        print(_change_line(backend), file=admin.out, flush=True)
        if wait and not backend["empty"]:
            print(_wait_until_empty(admin, backend["name"]), file=admin.out)
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError):
        return _fail(admin, _foreign(admin))
    return 0


def add_backend(
    admin: AdminTarget, name: str, settings: Mapping[str, Any], *, wait_s: float | None = None
) -> int:
    """Add one backend, or take it back, and say what became of it.

    Args:
        admin: whom to ask.
        name: its name, or `HOST:PORT` of a Triton where `settings` have no address.
        settings: as an entry of `backends` in the configuration; without any, a backend of that
            name that was removed is taken back.
        wait_s: return when it gets requests, and give up after that time; None: return at once.

    Returns:
        The exit code: 0, or 1 after one line on standard error.
    """
    try:
        backend = _added(admin, name, settings)
        print(_change_line(backend), file=admin.out, flush=True)
        if wait_s is not None and backend["state"] != _UP:
            print(_wait_until_up(admin, backend["name"], wait_s), file=admin.out)
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError):
        return _fail(admin, _foreign(admin))
    return 0


def _added(admin: AdminTarget, name: str, settings: Mapping[str, Any]) -> Any:
    path = "/api/v1/backends"
    if settings.keys() & _ADDRESSES or ":" not in name:
        return _call(admin, "POST", path, {"name": name, **settings})
    if not settings:
        # It may be the name of one that was removed, since names are addresses by default.
        try:
            return _call(admin, "POST", path, {"name": name})
        except ConflictError:
            pass
    from lb.settings.flags import triton_ports  # loads all settings, which few need

    return _call(admin, "POST", path, {**triton_ports(name), **settings})


def _path_of(name: str) -> str:
    return f"/api/v1/backends/{quote(name, safe='')}"


def _change_line(backend: Mapping[str, Any]) -> str:
    name, state, in_flight = backend["name"], backend["state"], backend["in_flight"]
    sequences = backend.get("open_sequences", 0)
    running = f", {sequences} sequences open" if sequences else ""
    return f"{name}: {state}, {in_flight} in flight{running}"


def _wait_until_empty(admin: AdminTarget, name: str) -> str:
    """Wait until nothing runs on a backend; what it is then, in a line."""
    while True:
        time.sleep(_LOOK_S)
        try:
            backend = _call(admin, "GET", _path_of(name))
        except NoSuchBackendError:
            return f"{name}: removed"
        if backend["empty"]:
            return f"{name}: {backend['state']}, empty"
        if backend["state"] == _UP:
            raise AdminError(f"{name} has been enabled again")


def _wait_until_up(admin: AdminTarget, name: str, wait_s: float) -> str:
    give_up_at = time.monotonic() + wait_s
    while True:
        backend = _call(admin, "GET", _path_of(name))
        if backend["state"] == _UP:
            return f"{name}: up"
        if time.monotonic() >= give_up_at:
            why = f": {_printable(backend['why'])}" if backend["why"] else ""
            raise AdminError(f"{name} is still {backend['state']}{why}")
        time.sleep(_LOOK_S)


def reload_configuration(admin: AdminTarget) -> int:
    """Have the process apply its configuration file, and say what is other now.

    Returns:
        The exit code: 0, or 1 after every reason on standard error; nothing has changed then.
    """
    try:
        answer = _call(replace(admin, timeout_s=_RELOAD_S), "POST", "/api/v1/reload")
        changed = [str(each) for each in answer["changed"]]
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError):
        return _fail(admin, _foreign(admin))
    text = "\n".join(["applied:", *(f"  {each}" for each in changed)]) if changed else "unchanged"
    print(text, file=admin.out)
    return 0


def upgrade_process(admin: AdminTarget) -> int:
    """Have the process start the next one, and wait until that serves.

    Returns:
        The exit code: 0, or 1 after the reason on standard error; the process goes on then.
    """
    try:
        answer = _call(replace(admin, timeout_s=_UPGRADE_S), "POST", "/api/v1/upgrade")
        pid = int(answer["pid"])
    except AdminError as error:
        return _fail(admin, error)
    except (LookupError, TypeError, ValueError):
        return _fail(admin, _foreign(admin))
    print(f"process {pid} serves now; the one before finishes what it has", file=admin.out)
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


def _call(
    admin: AdminTarget, method: str, path: str, content: Mapping[str, Any] | None = None
) -> Any:
    """Return the JSON of the answer.

    Raises:
        NoSuchBackendError, ConflictError: see there.
        AdminError: not reached, refused, or not the admin API.
    """
    connection = _connection(admin)
    headers = {"Authorization": f"Bearer {admin.token}"} if admin.token else {}
    sent = None
    if content is not None:
        sent = json.dumps(content).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, sent, headers)
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
    if response.status not in _FINE:
        said = _reasons(answer, response.status)
        raise _ERRORS.get(response.status, AdminError)(said)
    return answer


def _reasons(answer: Any, status: int) -> str:
    if not isinstance(answer, dict) or "error" not in answer:
        return f"HTTP {status}"
    return "\n  ".join(map(str, (answer["error"], *answer.get("problems", ()))))


def _connection(admin: AdminTarget) -> http.client.HTTPConnection:
    try:
        address = parse_address(admin.address.removeprefix("http://").rstrip("/"))
    except ValueError as error:
        raise AdminError(f"--admin: {error}") from error
    if address.path:
        return _UnixConnection(address.path, admin.timeout_s)
    return http.client.HTTPConnection(address.host, address.port, timeout=admin.timeout_s)


def _foreign(admin: AdminTarget) -> AdminError:
    return AdminError(f"what answers at {admin.address} is not the admin API of triton-lb")


def _fail(admin: AdminTarget, error: AdminError) -> int:
    print(f"triton-lb: {error}", file=admin.err or sys.stderr)
    return 1


# The table


def _backend_table(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """With columns of GPUs, where any backend tells of one."""
    devices = [backend.get("load", {}).get("devices", []) for backend in backends]
    rows = [_row(backend) for backend in backends]
    if not any(devices):
        return _table(rows, _HEADINGS)
    headings = (*_HEADINGS[:-1], *_GPU_HEADINGS, _HEADINGS[-1])
    return _table(
        [(*row[:-1], *_gpus(those), row[-1]) for row, those in zip(rows, devices, strict=True)],
        headings,
    )


def _gpus(devices: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """How busy they are on average, and how much of their memory is in use."""
    shares = [each["utilization"] for each in devices if each["utilization"] is not None]
    used = sum(each["memory_used_bytes"] or 0 for each in devices) / 2**30
    total = sum(each["memory_total_bytes"] or 0 for each in devices) / 2**30
    return (
        f"{sum(shares) / len(shares):.0%}" if shares else "-",
        f"{used:.1f}/{total:.1f}GiB" if total else "-",
    )


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
