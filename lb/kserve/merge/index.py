"""The model repositories of several servers as one.

A model's version is in the state that is best for clients: READY where one server has it ready.
Servers that know a model only by its name say nothing about its versions elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json, read_message, read_objects, write_json

EntryT = TypeVar("EntryT")

_BEST_FIRST: Final = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")
_Facts = tuple[str, str, str]
"""Name, version and state; empty where none is given."""


class HttpIndex:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> list[Json]:
        """One server's list."""
        return read_objects(body)

    def combine(self, answers: Sequence[tuple[str, list[Json]]]) -> bytes:
        """The union."""
        return write_json(_united((entries for _, entries in answers), _json_facts))


class GrpcIndex:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> pb.RepositoryIndexResponse:
        """One server's list."""
        return read_message(pb.RepositoryIndexResponse, body)

    def combine(self, answers: Sequence[tuple[str, pb.RepositoryIndexResponse]]) -> bytes:
        """The union."""
        whole = pb.RepositoryIndexResponse()
        whole.CopyFrom(answers[0][1])  # with fields that we do not know
        entries = _united((answer.models for _, answer in answers), _message_facts)
        copies = [pb.RepositoryIndexResponse.ModelIndex() for _ in entries]
        for copy, entry in zip(copies, entries, strict=True):
            copy.CopyFrom(entry)
        del whole.models[:]
        whole.models.extend(copies)
        return whole.SerializeToString(deterministic=True)


def _json_facts(entry: Json) -> _Facts:
    name, version, state = (entry.get(key, "") for key in ("name", "version", "state"))
    return str(name), str(version), str(state)


def _message_facts(entry: pb.RepositoryIndexResponse.ModelIndex) -> _Facts:
    return entry.name, entry.version, entry.state


def _united(
    lists: Iterable[Iterable[EntryT]], facts_of: Callable[[EntryT], _Facts]
) -> list[EntryT]:
    """The best entry of every version, models in the order in which they are first named."""
    models: dict[str, dict[str, tuple[int, EntryT]]] = {}
    for entries in lists:
        for entry in entries:
            name, version, state = facts_of(entry)
            versions = models.setdefault(name, {})
            rank = _rank(state)
            known = versions.get(version)
            if known is None or rank < known[0]:
                versions[version] = (rank, entry)
    return [
        entry
        for versions in models.values()
        for version, (_, entry) in versions.items()
        if version or len(versions) == 1
    ]


def _rank(state: str) -> int:
    return _BEST_FIRST.index(state) if state in _BEST_FIRST else len(_BEST_FIRST)
