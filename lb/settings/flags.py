"""Settings from command line flags alone, by Triton's own convention for ports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lb.settings.model import Settings
from lb.settings.problems import Problem, SettingsError
from lb.settings.reading import build_settings
from lb.settings.tree import Tree

DEFAULT_LISTENERS: Final = {
    "http": "127.0.0.1:8000",
    "grpc": "127.0.0.1:8001",
    "metrics": "127.0.0.1:8002",
    "admin": "127.0.0.1:8003",
}
"""Triton's ports, and ours for the admin API, bound to loopback."""
_BACKEND: Final = re.compile(r"backends\[([0-9]+)\](?:\.([a-z]+))?")


def settings_from_flags(
    backends: Sequence[str],
    *,
    http: str = DEFAULT_LISTENERS["http"],
    grpc: str = DEFAULT_LISTENERS["grpc"],
    metrics: str = DEFAULT_LISTENERS["metrics"],
    admin: str = DEFAULT_LISTENERS["admin"],
) -> Settings:
    """Build the settings of `serve --backend HOST:PORT ...`.

    Each backend is a Triton with HTTP at its port, gRPC at the next and metrics after that; a
    Unix socket serves HTTP alone.

    Raises:
        SettingsError: lists every problem, each with the flag that it is about.
    """
    tree = Tree()
    tree.root["listen"] = {"http": http, "grpc": grpc, "metrics": metrics, "admin": admin}
    tree.root["backends"] = [triton_ports(text) for text in backends]
    try:
        return build_settings(tree)
    except SettingsError as error:
        found: dict[str, Problem] = {}
        for problem in error.problems:
            # One mistake in an address of a Triton shows in all three of its ports.
            found.setdefault(problem.path.partition("].")[0], _of_flag(problem, backends))
        raise SettingsError(found.values()) from None


def triton_ports(text: str) -> dict[str, object]:
    """Return the addresses of a Triton by its HTTP port; ports that do not exist are left to the
    models to refuse."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5) or "/" in host:
        return {"http": text}
    return {"http": text, "grpc": f"{host}:{int(port) + 1}", "metrics": f"{host}:{int(port) + 2}"}


def _of_flag(problem: Problem, backends: Sequence[str]) -> Problem:
    """The problem in the words of the command line."""
    message = problem.message.replace("listen.", "--")
    if problem.path.endswith(".name"):
        message = "given twice"
    return replace(problem, path=_flag(problem.path, backends), message=message)


def _flag(path: str, backends: Sequence[str]) -> str:
    """Name the flag that a setting comes from."""
    if path.startswith("listen."):
        return path.replace("listen.", "--")
    match = _BACKEND.fullmatch(path)
    if match is None:
        return "--backend"
    port = "" if match[2] in (None, "name", "http") else f" ({match[2]})"
    return f"--backend {backends[int(match[1])]}{port}"
