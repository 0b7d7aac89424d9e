"""One command for several running processes: replicas, each with an admin API of its own."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TextIO

from pydantic import RootModel

from lb.admin.operations import CONFIG
from lb.cli.admin_client import AdminError, AdminTarget, parse_target
from lb.domain.backend import Address

_AT_ONCE: Final = 64


class _Configuration(RootModel[dict[str, Any]]):
    """The settings of a process."""


def addresses_of(given: Sequence[str], source: str, *, every: bool) -> list[str]:
    """Where the admin APIs are that a command is for.

    Args:
        given: addresses as the user wrote them.
        source: the option or variable that they come from, for errors.
        every: a host name stands for all of its addresses, as that of a headless service does.

    Raises:
        AdminError: a name cannot be looked up, or what was given is no address.
    """
    found: dict[str, None] = {}
    for text in given:
        address = parse_target(text, source)
        found.update(dict.fromkeys(_looked_up(address, source) if every else [text]))
    return list(found)


def _looked_up(address: Address, source: str) -> list[str]:
    if address.path:
        return [str(address)]
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AdminError(f"{source}: {address.host}: {error.strerror}") from error
    hosts = sorted({str(info[4][0]) for info in infos})
    return [str(Address(host=host, port=address.port)) for host in hosts]


def with_replicas(targets: Sequence[AdminTarget]) -> list[AdminTarget]:
    """Add the replicas that processes name in `admin.replicas` of their configuration.

    What a process cannot be asked is left to the command, which meets the same error.
    """
    with ThreadPoolExecutor(min(len(targets), _AT_ONCE)) as pool:
        named = list(pool.map(_replicas_of, targets))
    found = {str(parse_target(each.address, "--admin")): each for each in targets}
    for target, urls in zip(targets, named, strict=True):
        for url in urls:
            address = str(parse_target(url, f"admin.replicas of {target.address}"))
            found.setdefault(address, replace(target, address=address))
    return list(found.values())


def _replicas_of(target: AdminTarget) -> list[str]:
    try:
        settings = target.read(CONFIG, _Configuration).model.root
    except AdminError:
        return []
    admin = settings.get("admin")
    urls = admin.get("replicas") if isinstance(admin, dict) else None
    return [url for url in urls if isinstance(url, str)] if isinstance(urls, list) else []


def ask_each(targets: Sequence[AdminTarget], ask: Callable[[AdminTarget], int]) -> int:
    """Run a command for every process at the same time; each line says whose it is.

    A line of text is labelled with the address of the process. A JSON document becomes the member
    `answer` of an object in one line, whose member `admin` is the address.

    Returns:
        The exit code: 0 when all went well, else the highest.
    """
    if len(targets) == 1:
        return ask(targets[0])
    width = max(len(target.address) for target in targets)
    lock = threading.Lock()

    def run(target: AdminTarget) -> int:
        label = f"{target.address.ljust(width)}  "
        out = _Lines(sys.stdout, lock, label)
        if target.as_json:
            out = _Lines(
                sys.stdout, lock, f'{{"admin": {json.dumps(target.address)}, "answer": ', "}"
            )
        return ask(replace(target, out=out, err=_Lines(sys.stderr, lock, label)))

    with ThreadPoolExecutor(min(len(targets), _AT_ONCE)) as pool:
        return max(pool.map(run, targets))


class _Lines:
    """Writes whole lines to a stream, each between two texts."""

    def __init__(self, stream: TextIO, lock: threading.Lock, before: str, after: str = "") -> None:
        self._stream = stream
        self._lock = lock
        self._before = before
        self._after = after
        self._begun = ""

    def write(self, text: str) -> int:
        """As of a text stream."""
        *lines, self._begun = (self._begun + text).split("\n")
        with self._lock:
            self._stream.writelines(f"{self._before}{line}{self._after}\n" for line in lines)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Lines are written at once."""
