"""Cost of looking into messages: nanoseconds per look.

python -m benchmarks.bench_grpc_message
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import MessageMeter, frame_message, model_name

ROUNDS = 7
CALLS = 50_000


def cost(call: Callable[[bytes], object], data: bytes, calls: int = CALLS) -> float:
    """Nanoseconds per call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(calls):
            call(data)
        best = min(best, (time.perf_counter_ns() - started) / calls)
    return best


def main() -> None:
    """Print one line per kind of message."""
    tensors = [bytes(192)]
    named = pb.ModelInferRequest(model_name="simple", raw_input_contents=tensors)
    long = pb.ModelInferRequest(model_name="m" * 200, raw_input_contents=tensors)
    unnamed = pb.ModelInferRequest(model_version="1", raw_input_contents=tensors)
    decode = pb.ModelInferRequest.FromString
    message = frame_message(named.SerializeToString())
    for name, request in (("name", named), ("name of 200 bytes", long), ("no name", unnamed)):
        framed = frame_message(request.SerializeToString())
        print(f"{name:32} {cost(model_name, framed):8.0f} ns")
    print(f"{'name cut off':32} {cost(model_name, message[:9]):8.0f} ns")
    print(f"{'for comparison, protobuf':32} {cost(decode, message[5:]):8.0f} ns")
    meter = MessageMeter()
    print(f"{'meter, one message':32} {cost(meter.feed, message):8.0f} ns")
    print(f"{'meter, a part of 16 KiB':32} {cost(long_meter(), bytes(16_384), 5000):8.0f} ns")


def long_meter() -> Callable[[bytes], object]:
    """A meter within a message that does not end."""
    meter = MessageMeter()
    meter.feed(b"\0\xff\xff\xff\xff")
    return meter.feed


if __name__ == "__main__":
    main()
