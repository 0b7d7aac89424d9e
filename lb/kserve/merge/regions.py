"""Regions of shared memory that are registered with any of several servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json, read_message, read_objects, write_objects
from lb.kserve.merge.steps import Steps

_System = pb.SystemSharedMemoryStatusResponse
_Cuda = pb.CudaSharedMemoryStatusResponse
_MAX_BYTES: Final = 2**20
"""Longest answer: about ten thousand regions. A message of this length is parsed in 3 ms."""

StatusT = TypeVar("StatusT", _System, _Cuda)


class HttpRegions:
    """Both kinds of memory. See `lb.kserve.merge.form.Merge`."""

    max_bytes = _MAX_BYTES

    def read(self, body: bytes) -> Steps[list[Json]]:
        """One server's regions."""
        return (yield from read_objects(body))

    def combine(self, answers: Sequence[tuple[str, list[Json]]]) -> Steps[bytes]:
        """The union by name; of regions with one name the first counts."""
        named: dict[str, Json] = {}
        for _, regions in answers:
            for region in regions:
                named.setdefault(str(region.get("name")), region)
            yield
        return (yield from write_objects(list(named.values())))


class GrpcSystemRegions:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = _MAX_BYTES

    def read(self, body: bytes) -> Steps[_System]:
        """One server's regions."""
        yield
        return read_message(_System, body)

    def combine(self, answers: Sequence[tuple[str, _System]]) -> Steps[bytes]:
        """The union by name; of regions with one name the first counts."""
        return (yield from _united(_System(), [answer for _, answer in answers]))


class GrpcCudaRegions:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = _MAX_BYTES

    def read(self, body: bytes) -> Steps[_Cuda]:
        """One server's regions."""
        yield
        return read_message(_Cuda, body)

    def combine(self, answers: Sequence[tuple[str, _Cuda]]) -> Steps[bytes]:
        """The union by name; of regions with one name the first counts."""
        return (yield from _united(_Cuda(), [answer for _, answer in answers]))


def _united(whole: StatusT, answers: Sequence[StatusT]) -> Steps[bytes]:
    for answer in reversed(answers):
        whole.MergeFrom(answer)  # a later region of the same name replaces the one before
        yield
    return whole.SerializeToString(deterministic=True)
