"""The model repositories of several servers as one.

A model's version is in the state that is best for clients: READY where one server has it ready.
Servers that know a model only by its name say nothing about its versions elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import (
    MAX_BYTES,
    Json,
    read_message,
    read_objects,
    write_objects,
)
from lb.kserve.merge.message_list import ListWriter, read_list
from lb.kserve.merge.steps import Pace, Steps

_Entry = pb.RepositoryIndexResponse.ModelIndex
_MODELS: Final = 1
"""Number of the field with the entries."""
_MAX_ENTRY_BYTES: Final = 2**20
"""Longest entry: a name, a version, a state and a reason, which may hold an error's text."""
_ENTRY_WORK: Final = 64
"""What an entry costs beside its bytes, as if it had so many more."""
EntryT = TypeVar("EntryT")

_BEST_FIRST: Final = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")
_Facts = tuple[str, str, str]
"""Name, version and state; empty where none is given."""


class HttpIndex:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_BYTES

    def read(self, body: bytes) -> Steps[list[Json]]:
        """One server's list."""
        return (yield from read_objects(body))

    def combine(self, answers: Sequence[tuple[str, list[Json]]]) -> Steps[bytes]:
        """The union."""
        entries = yield from _united([entries for _, entries in answers], _json_facts)
        return (yield from write_objects(entries))


class GrpcIndex:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_BYTES

    def read(self, body: bytes) -> Steps[tuple[list[_Entry], bytes]]:
        """One server's list, and what its answer holds beside."""
        answer = yield from read_list(body, _MODELS, _MAX_ENTRY_BYTES)
        entries = []
        pace = Pace()
        for begin, end in answer.spans:
            if pace.count(end - begin + _ENTRY_WORK):
                yield
            try:
                entries.append(read_message(_Entry, body[begin:end]))
            except ValueError:
                # The server lists a directory whose name is no text, which protobuf cannot tell.
                continue
        return entries, answer.others

    def combine(self, answers: Sequence[tuple[str, tuple[list[_Entry], bytes]]]) -> Steps[bytes]:
        """The union."""
        lists = [entries for _, (entries, _) in answers]
        writer = ListWriter(_MODELS)
        for entry in (yield from _united(lists, _message_facts)):
            if writer.add(entry):
                yield
        _, (_, others) = answers[0]
        return writer.finish(others)


def _json_facts(entry: Json) -> _Facts:
    name, version, state = (entry.get(key, "") for key in ("name", "version", "state"))
    return str(name), str(version), str(state)


def _message_facts(entry: _Entry) -> _Facts:
    return entry.name, entry.version, entry.state


def _united(
    lists: Iterable[Iterable[EntryT]], facts_of: Callable[[EntryT], _Facts]
) -> Steps[list[EntryT]]:
    """The best entry of every version, models in the order in which they are first named."""
    models: dict[str, dict[str, tuple[int, EntryT]]] = {}
    pace = Pace()
    for entries in lists:
        for entry in entries:
            name, version, state = facts_of(entry)
            versions = models.setdefault(name, {})
            rank = _rank(state)
            known = versions.get(version)
            if known is None or rank < known[0]:
                versions[version] = (rank, entry)
            if pace.count(_ENTRY_WORK):
                yield
    return [
        entry
        for versions in models.values()
        for version, (_, entry) in versions.items()
        if version or len(versions) == 1
    ]


def _rank(state: str) -> int:
    return _BEST_FIRST.index(state) if state in _BEST_FIRST else len(_BEST_FIRST)
