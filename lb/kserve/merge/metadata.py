"""Several servers as one server: named as the first is, able to do what all of them can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import MAX_SHORT_BYTES, Json, read_message, read_object, write_json
from lb.kserve.merge.steps import Steps

_EXTENSIONS = "extensions"


class HttpMetadata:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_SHORT_BYTES

    def read(self, body: bytes) -> Steps[Json]:
        """One server's description."""
        yield
        found = read_object(body)
        extensions = found.get(_EXTENSIONS, [])
        if not (isinstance(extensions, list) and all(isinstance(e, str) for e in extensions)):
            raise ValueError("the extensions are no list of names")
        return found

    def combine(self, answers: Sequence[tuple[str, Json]]) -> Steps[bytes]:
        """The first one's, with the extensions that all have."""
        yield
        whole = dict(answers[0][1])
        if _EXTENSIONS in whole:
            whole[_EXTENSIONS] = _common([each.get(_EXTENSIONS, []) for _, each in answers])
        return write_json(whole)


class GrpcMetadata:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_SHORT_BYTES

    def read(self, body: bytes) -> Steps[pb.ServerMetadataResponse]:
        """One server's description."""
        yield
        return read_message(pb.ServerMetadataResponse, body)

    def combine(self, answers: Sequence[tuple[str, pb.ServerMetadataResponse]]) -> Steps[bytes]:
        """The first one's, with the extensions that all have."""
        yield
        whole = pb.ServerMetadataResponse()
        whole.CopyFrom(answers[0][1])
        del whole.extensions[:]
        whole.extensions.extend(_common([each.extensions for _, each in answers]))
        return whole.SerializeToString(deterministic=True)


def _common(lists: Sequence[Iterable[str]]) -> list[str]:
    """What is in all lists, in the order of the first."""
    others = [frozenset(each) for each in lists[1:]]
    return [name for name in lists[0] if all(name in other for other in others)]
