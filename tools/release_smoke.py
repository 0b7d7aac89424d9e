"""What `make release-check` does with an installed triton-lb: serves two Tritons, loses one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import google.protobuf
import numpy
import tritonclient
import tritonclient.grpc
import tritonclient.http

import lb
from lb.testing import running, simulated


def infer(kind: ModuleType, address: str) -> None:
    """Infer once with NVIDIA's client for HTTP or gRPC."""
    data = numpy.arange(16, dtype=numpy.int32).reshape(1, 16)
    inputs = [kind.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(data)
    client = kind.InferenceServerClient(address)
    assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == data + data).all()
    client.close()


def main() -> None:
    """Infer before and after a Triton is killed."""
    assert "site-packages" in str(lb.__file__), f"{lb.__file__} is not what was installed"
    with simulated(2) as tritons, running(tritons) as balancer:
        for _ in range(10):
            infer(tritonclient.http, balancer.http)
            infer(tritonclient.grpc, balancer.grpc)
        tritons[0].kill()
        for _ in range(10):
            infer(tritonclient.http, balancer.http)
            infer(tritonclient.grpc, balancer.grpc)
    folder = Path(str(lb.__file__)).parent
    print(f"40 inferences, protobuf {google.protobuf.__version__}, {folder}")


if __name__ == "__main__":
    main()
