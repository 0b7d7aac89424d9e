"""Regions of shared memory that are registered with any of several servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json, read_message, read_objects, write_json

_System = pb.SystemSharedMemoryStatusResponse
_Cuda = pb.CudaSharedMemoryStatusResponse
StatusT = TypeVar("StatusT", _System, _Cuda)


class HttpRegions:
    """Both kinds of memory. See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> list[Json]:
        """One server's regions."""
        return read_objects(body)

    def combine(self, answers: Sequence[tuple[str, list[Json]]]) -> bytes:
        """The union by name; of regions with one name the first counts."""
        named: dict[str, Json] = {}
        for _, regions in answers:
            for region in regions:
                named.setdefault(str(region.get("name")), region)
        return write_json(list(named.values()))


class GrpcSystemRegions:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> _System:
        """One server's regions."""
        return read_message(_System, body)

    def combine(self, answers: Sequence[tuple[str, _System]]) -> bytes:
        """The union by name; of regions with one name the first counts."""
        return _united(_System(), [answer for _, answer in answers])


class GrpcCudaRegions:
    """See `lb.kserve.merge.form.Merge`."""

    def read(self, body: bytes) -> _Cuda:
        """One server's regions."""
        return read_message(_Cuda, body)

    def combine(self, answers: Sequence[tuple[str, _Cuda]]) -> bytes:
        """The union by name; of regions with one name the first counts."""
        return _united(_Cuda(), [answer for _, answer in answers])


def _united(whole: StatusT, answers: Sequence[StatusT]) -> bytes:
    for answer in reversed(answers):
        whole.MergeFrom(answer)  # a later region of the same name replaces the one before
    return whole.SerializeToString(deterministic=True)
