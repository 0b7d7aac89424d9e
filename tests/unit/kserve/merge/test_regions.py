"""Regions of shared memory on several servers."""

from __future__ import annotations

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.regions import GrpcCudaRegions, GrpcSystemRegions, HttpRegions
from tests.fakes.merges import AtOnce

SYSTEM = pb.SystemSharedMemoryStatusResponse
CUDA = pb.CudaSharedMemoryStatusResponse


def test_regions_are_united_by_name_and_the_first_counts() -> None:
    merge = AtOnce(HttpRegions())
    one = b'[{"name":"x","key":"/x","offset":0,"byte_size":10}]'
    two = b'[{"name":"y","key":"/y"},{"name":"x","key":"/other"}]'
    answers = [("a", merge.read(one)), ("b", merge.read(two))]
    assert merge.combine(answers) == one[:-1] + b',{"name":"y","key":"/y"}]'
    assert merge.combine(answers[:1]) == one
    assert merge.combine([("a", merge.read(b"[]"))]) == b"[]"


def test_system_regions_of_grpc_are_united_alike() -> None:
    merge = AtOnce(GrpcSystemRegions())
    region = SYSTEM.RegionStatus
    one = SYSTEM(regions={"x": region(name="x", key="/x", byte_size=10)})
    two = SYSTEM(regions={"x": region(name="x", key="/o"), "y": region(name="y", key="/y")})
    answers = [
        (name, merge.read(each.SerializeToString()))
        for name, each in zip("ab", (one, two), strict=True)
    ]
    assert SYSTEM.FromString(merge.combine(answers)) == SYSTEM(
        regions={"x": one.regions["x"], "y": two.regions["y"]}
    )


def test_cuda_regions_of_grpc_are_united_alike() -> None:
    merge = AtOnce(GrpcCudaRegions())
    region = CUDA.RegionStatus
    one = CUDA(regions={"x": region(name="x", device_id=0)})
    two = CUDA(regions={"y": region(name="y", device_id=1)})
    answers = [("a", merge.read(one.SerializeToString())), ("b", two)]
    assert CUDA.FromString(merge.combine(answers)) == CUDA(
        regions={"x": one.regions["x"], "y": two.regions["y"]}
    )
