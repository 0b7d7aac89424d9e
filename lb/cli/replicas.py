"""One command for several running processes: replicas, each with an admin API of its own."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TextIO

from lb.cli.admin import AdminError, AdminTarget
from lb.domain.backend import Address, parse_address

_AT_ONCE: Final = 64
_SCHEME: Final = "http://"


def addresses_of(given: Sequence[str], *, every: bool) -> list[str]:
    """Where the admin APIs are that a command is for.

    Args:
        given: `--admin` as often as it was given.
        every: a host name stands for all of its addresses, as that of a headless service does.

    Raises:
        AdminError: a name cannot be looked up, or what was given is no address.
    """
    found: dict[str, None] = {}
    for text in given:
        found.update(dict.fromkeys(_looked_up(text) if every else [text]))
    return list(found)


def _looked_up(text: str) -> list[str]:
    try:
        address = parse_address(text.removeprefix(_SCHEME).rstrip("/"))
    except ValueError as error:
        raise AdminError(f"--admin: {error}") from error
    if address.path:
        return [text]
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AdminError(f"--admin: {address.host}: {error.strerror}") from error
    hosts = sorted({str(info[4][0]) for info in infos})
    return [str(Address(host=host, port=address.port)) for host in hosts]


def ask_each(targets: Sequence[AdminTarget], ask: Callable[[AdminTarget], int]) -> int:
    """Run a command for every process at the same time; each line says whose it is.

    Returns:
        The exit code: 0 when all went well, else the highest.
    """
    if len(targets) == 1:
        return ask(targets[0])
    width = max(len(target.address) for target in targets)
    lock = threading.Lock()

    def run(target: AdminTarget) -> int:
        label = target.address.ljust(width)
        out, err = _Labelled(sys.stdout, label, lock), _Labelled(sys.stderr, label, lock)
        return ask(replace(target, out=out, err=err))

    with ThreadPoolExecutor(min(len(targets), _AT_ONCE)) as pool:
        return max(pool.map(run, targets))


class _Labelled:
    """Writes whole lines to a stream, each behind a label."""

    def __init__(self, stream: TextIO, label: str, lock: threading.Lock) -> None:
        self._stream = stream
        self._label = label
        self._lock = lock
        self._begun = ""

    def write(self, text: str) -> int:
        """As of a text stream."""
        *lines, self._begun = (self._begun + text).split("\n")
        with self._lock:
            self._stream.writelines(f"{self._label}  {line}\n" for line in lines)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Lines are written at once."""
