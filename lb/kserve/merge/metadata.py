"""Several servers as one server: named as the first is, able to do what all of them can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json, read_message, read_object, write_json

_EXTENSIONS = "extensions"


class HttpMetadata:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> Json:
        """One server's description."""
        found = read_object(body)
        extensions = found.get(_EXTENSIONS, [])
        if not (isinstance(extensions, list) and all(isinstance(e, str) for e in extensions)):
            raise ValueError("the extensions are no list of names")
        return found

    def combine(self, answers: Sequence[tuple[str, Json]]) -> bytes:
        """The first one's, with the extensions that all have."""
        whole = dict(answers[0][1])
        if _EXTENSIONS in whole:
            whole[_EXTENSIONS] = _common([each.get(_EXTENSIONS, []) for _, each in answers])
        return write_json(whole)


class GrpcMetadata:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> pb.ServerMetadataResponse:
        """One server's description."""
        return read_message(pb.ServerMetadataResponse, body)

    def combine(self, answers: Sequence[tuple[str, pb.ServerMetadataResponse]]) -> bytes:
        """The first one's, with the extensions that all have."""
        whole = pb.ServerMetadataResponse()
        whole.CopyFrom(answers[0][1])
        del whole.extensions[:]
        whole.extensions.extend(_common([each.extensions for _, each in answers]))
        return whole.SerializeToString(deterministic=True)


def _common(lists: Sequence[Iterable[str]]) -> list[str]:
    """What is in all lists, in the order of the first."""
    others = [frozenset(each) for each in lists[1:]]
    return [name for name in lists[0] if all(name in other for other in others)]
