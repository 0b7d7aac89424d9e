"""`triton-lb backends|models|drain|...`: talk to the admin API of a running process.

Each command returns its exit code: 0, or 1 after one line on standard error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel

from lb.admin.compare_models import Comparison
from lb.admin.live_document import Live
from lb.admin.models import (
    Backend,
    Backends,
    ModelDrain,
    Models,
    NewBackend,
    PlacementView,
    Promotion,
    Queue,
    Reload,
    Shares,
    Sources,
    Status,
    Upgrade,
    VariantSet,
    VariantSets,
)
from lb.admin.operations import (
    BACKENDS,
    COMPARISONS,
    LIVE,
    PLACEMENT,
    QUEUE,
    RELOAD,
    SOURCES,
    STATUS,
    UPGRADE,
    VARIANTS,
)
from lb.cli.admin_client import (
    AdminError,
    AdminTarget,
    ConflictError,
    ModelT,
    NoSuchBackendError,
)
from lb.cli.compare import comparison_lines, comparison_markdown
from lb.cli.tables import (
    backend_table,
    change_line,
    model_change_line,
    model_lines,
    placement_lines,
    printable,
    queue_lines,
    source_table,
    status_line,
    variant_table,
)
from lb.settings.units import format_duration

_RELOAD_S: Final = 120.0
_UPGRADE_S: Final = 3600.0
"""The process ends an upgrade by itself: a new process has a minute, and what `shutdown` allows."""
_EVICT_S: Final = 180.0
"""Requests end, and an unload takes up to a minute on each backend."""
_DONE: Final = {"pin": "pinned", "unpin": "unpinned", "evict": "evicted"}
_LOOK_S: Final = 0.2
"""How often it is looked whether what is waited for has happened."""
_UP: Final = "up"
_REMOVING: Final = "removing"
_ADDRESSES: Final = frozenset({"http", "grpc", "metrics"})


# Views


def list_backends(admin: AdminTarget) -> int:
    """Print a table of the backends."""
    return _show(admin, BACKENDS, Backends, lambda answer: backend_table(answer.backends))


def list_models(admin: AdminTarget, name: str) -> int:
    """Print which models a backend has, and how it differs from the others."""
    return _show(admin, f"{_path_of(name)}/models", Models, lambda each: model_lines(name, each))


def show_queue(admin: AdminTarget) -> int:
    """Print the queued requests of each model, and its expected durations by backend."""
    return _show(admin, QUEUE, Queue, queue_lines)


def show_placement(admin: AdminTarget) -> int:
    """Print which models are loaded where on demand, and what is under way."""
    return _show(admin, PLACEMENT, PlacementView, placement_lines)


def change_placement(admin: AdminTarget, model: str, action: str, backend: str | None) -> int:
    """Pin, unpin or evict a model, and say that it is done.

    Args:
        admin: whom to ask.
        model: its name.
        action: `pin`, `unpin` or `evict`.
        backend: where to evict it; None: everywhere.
    """
    query = "" if backend is None else f"?backend={quote(backend, safe='')}"
    path = f"{PLACEMENT}/models/{quote(model, safe='')}/{action}{query}"
    try:
        replace(admin, timeout_s=_EVICT_S).call("POST", path, PlacementView)
    except AdminError as error:
        return admin.fail(error)
    print(printable(f"model {model}: {_DONE[action]}"), file=admin.out)
    return 0


def list_sources(admin: AdminTarget) -> int:
    """Print a table of the sources of backends."""
    return _show(admin, SOURCES, Sources, lambda answer: source_table(answer.sources))


def list_variants(admin: AdminTarget) -> int:
    """Print the names that variants serve, and how these do."""
    return _show(admin, VARIANTS, VariantSets, lambda answer: variant_table(answer.models))


def show_comparison(admin: AdminTarget, name: str, *, markdown: bool) -> int:
    """Print how the answers of a name's shadow compare.

    Args:
        admin: whom to ask.
        name: that clients use.
        markdown: print a report.
    """
    lines = comparison_markdown if markdown else comparison_lines
    return _show(admin, f"{COMPARISONS}/{quote(name, safe='')}", Comparison, lines)


def _show(
    admin: AdminTarget, path: str, answer: type[ModelT], lines: Callable[[ModelT], list[str]]
) -> int:
    try:
        shown = admin.read(path, answer)
    except AdminError as error:
        return admin.fail(error)
    admin.write(shown, lines)
    return 0


def show_status(admin: AdminTarget, *, fail_if_degraded: bool = False) -> int:
    """Print in one line how a process does.

    Args:
        admin: whom to ask.
        fail_if_degraded: print in another line how the page and `top` judge it, and why.

    Returns:
        The exit code: 0 while a backend is up, else 1. With `fail_if_degraded` 0 means that all is
        good.
    """
    try:
        shown = admin.read(STATUS, Status)
        summary = admin.read(LIVE, Live).model.root["summary"] if fail_if_degraded else None
    except AdminError as error:
        return admin.fail(error)
    lines = [status_line(shown.model)]
    if summary is not None:
        lines.append(printable(f"{summary['verdict']}: {summary['why']}"))
    admin.write(shown, lambda _: lines)
    return 0 if shown.model.up and (summary is None or summary["verdict"] == "good") else 1


# Changes


def change_backend(
    admin: AdminTarget, name: str, action: str, *, limit_s: float | None = None, wait: bool = False
) -> int:
    """Change one backend and say what became of it.

    Args:
        admin: whom to ask.
        name: of the backend.
        action: `drain`, `enable`, `disable`, `activate`, `deactivate` or `remove`.
        limit_s: how long requests under way may take, in seconds; None: as long as is usual.
        wait: return when nothing runs on it any more, or, after `remove`, when it is removed.
    """
    path = _path_of(name)
    query = f"?limit={format_duration(limit_s)}" if limit_s is not None else ""
    try:
        if action == "remove":
            backend = admin.call("DELETE", f"{path}{query}", Backend)
        else:
            backend = admin.call("POST", f"{path}/{action}{query}", Backend)
        print(change_line(backend), file=admin.out, flush=True)
        if wait and action == "remove":
            print(_wait_until_removed(admin, backend.name), file=admin.out)
        elif wait:
            print(_wait_until_empty(admin, backend), file=admin.out)
    except AdminError as error:
        return admin.fail(error)
    return 0


def change_model(
    admin: AdminTarget, name: str, model: str, action: str, *, wait: bool = False
) -> int:
    """Drain or enable one model on one backend and say what became of it.

    Args:
        admin: whom to ask.
        name: of the backend.
        model: its name.
        action: `drain` or `enable`.
        wait: return when nothing of the model runs there any more.
    """
    path = f"{_path_of(name)}/models/{quote(model, safe='')}"
    try:
        found = admin.call("POST", f"{path}/{action}", ModelDrain)
        print(model_change_line(found), file=admin.out, flush=True)
        if wait:
            print(_wait_until_drained(admin, path, found), file=admin.out)
    except AdminError as error:
        return admin.fail(error)
    return 0


def _wait_until_drained(admin: AdminTarget, path: str, found: ModelDrain) -> str:
    """Wait until nothing of a model runs on a backend, and return a line that says so."""
    while not found.empty:
        time.sleep(_LOOK_S)
        found = admin.call("GET", path, ModelDrain)
        if not found.draining:
            raise AdminError(f"{printable(found.model)} has been enabled again")
    return printable(f"{found.backend}, model {found.model}: drained")


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
    """
    try:
        backend = _added(admin, name, settings)
        print(change_line(backend), file=admin.out, flush=True)
        if wait_s is not None and backend.state != _UP:
            print(_wait_until_up(admin, backend.name, wait_s), file=admin.out)
    except AdminError as error:
        return admin.fail(error)
    return 0


def _added(admin: AdminTarget, name: str, settings: Mapping[str, Any]) -> Backend:
    if settings.keys() & _ADDRESSES or ":" not in name:
        return _add(admin, {"name": name, **settings})
    if not settings:
        # It may be the name of one that was removed, since names are addresses by default.
        try:
            return _add(admin, {"name": name})
        except ConflictError:
            pass
    from lb.settings.flags import triton_ports  # loads all settings, which few need

    return _add(admin, {**triton_ports(name), **settings})


def _add(admin: AdminTarget, settings: Mapping[str, Any]) -> Backend:
    return admin.call("POST", BACKENDS, Backend, NewBackend(**settings))


def _path_of(name: str) -> str:
    return f"{BACKENDS}/{quote(name, safe='')}"


def _wait_until_empty(admin: AdminTarget, backend: Backend) -> str:
    """Wait until nothing runs on a backend, and return a line that says so."""
    name = backend.name
    while not backend.empty:
        time.sleep(_LOOK_S)
        try:
            backend = admin.call("GET", _path_of(name), Backend)
        except NoSuchBackendError:
            return f"{printable(name)}: removed"
        if backend.state == _UP:
            raise AdminError(f"{printable(name)} has been enabled again")
    return f"{printable(name)}: drained"


def _wait_until_removed(admin: AdminTarget, name: str) -> str:
    """Wait until a backend is gone, and return a line that says so."""
    while True:
        try:
            backend = admin.call("GET", _path_of(name), Backend)
        except NoSuchBackendError:
            return f"{printable(name)}: removed"
        if backend.state != _REMOVING:
            raise AdminError(f"{printable(name)} has been added again")
        time.sleep(_LOOK_S)


def _wait_until_up(admin: AdminTarget, name: str, wait_s: float) -> str:
    give_up_at = time.monotonic() + wait_s
    while True:
        backend = admin.call("GET", _path_of(name), Backend)
        if backend.state == _UP:
            return f"{printable(name)}: up"
        if time.monotonic() >= give_up_at:
            why = f": {backend.why}" if backend.why else ""
            raise AdminError(printable(f"{name} is still {backend.state}{why}"))
        time.sleep(_LOOK_S)


def set_shares(admin: AdminTarget, name: str, percents: Mapping[str, float]) -> int:
    """Give variants of a name other shares.

    Args:
        admin: whom to ask.
        name: that clients use.
        percents: by the variant's name; without any, those of the file hold again.
    """
    if percents:
        return _change_variants(admin, name, "shares", Shares(percents=dict(percents)))
    return _change_variants(admin, name, "reset", None)


def promote(admin: AdminTarget, name: str, variant: str) -> int:
    """Make a variant of a name the first one, which gets everything."""
    return _change_variants(admin, name, "promote", Promotion(variant=variant))


def _change_variants(admin: AdminTarget, name: str, verb: str, body: BaseModel | None) -> int:
    try:
        path = f"{VARIANTS}/{quote(name, safe='')}/{verb}"
        changed = admin.call("POST", path, VariantSet, body)
    except AdminError as error:
        return admin.fail(error)
    shares = ", ".join(f"{each.name} {each.percent:.4g} %" for each in changed.variants)
    print(printable(f"{changed.model}: {shares}"), file=admin.out)
    return 0


# The process


def reload_configuration(admin: AdminTarget) -> int:
    """Have the process apply its configuration file, and say what is other now. After an error
    nothing has changed."""
    try:
        changed = replace(admin, timeout_s=_RELOAD_S).call("POST", RELOAD, Reload).changed
    except AdminError as error:
        return admin.fail(error)
    text = "\n".join(["applied:", *(f"  {each}" for each in changed)]) if changed else "unchanged"
    print(text, file=admin.out)
    return 0


def upgrade_process(admin: AdminTarget) -> int:
    """Have the process start the next one, and wait until that serves. After an error the process
    goes on."""
    admin.note("the next process starts; until it serves, the one that runs goes on")
    try:
        pid = replace(admin, timeout_s=_UPGRADE_S).call("POST", UPGRADE, Upgrade).pid
    except AdminError as error:
        return admin.fail(error)
    print(f"process {pid} serves now; the one before finishes what it has", file=admin.out)
    return 0
